// SPDX-License-Identifier: BSD-2-Clause
/*
 * A client that breaks the control protocol: wrong sizes, commands, handles, values, descriptors,
 * hellos, and connections by the thousand. Each gets its error; others notice nothing; nothing is
 * left behind.
 */
#include "honest.h"
#include "raw.h"

/* A hello that is not one is answered with EPROTO, and the connection ends. */
static void bad_hello(const void *buf, size_t len)
{
	struct vernic_hello reply;
	struct raw r = {.fd = raw_connect()};

	CHECK(r.fd >= 0);
	CHECK_EQ(raw_send(r.fd, buf, len, NULL, 0), 0);
	CHECK_EQ(raw_receive(&r, &reply, sizeof(reply)), sizeof(reply));
	CHECK_EQ(reply.magic, VERNIC_MAGIC);
	CHECK_EQ(reply.version, VERNIC_ABI_VERSION);
	CHECK_EQ(reply.status, EPROTO);
	CHECK(raw_receive(&r, &reply, sizeof(reply)) <= 0);
	raw_end(&r);
}

static void hellos(void)
{
	struct vernic_hello hello = {.magic = VERNIC_MAGIC, .version = VERNIC_ABI_VERSION};
	struct vernic_request req = {.command = VERNIC_CMD_STATUS};

	bad_hello(&hello, sizeof(hello) - 1);
	bad_hello(&hello, 1);
	bad_hello(&req, sizeof(req));
	hello.version++;
	bad_hello(&hello, sizeof(hello));
	hello.version = 0;
	bad_hello(&hello, sizeof(hello));
	hello.version = VERNIC_ABI_VERSION;
	hello.magic ^= 1;
	bad_hello(&hello, sizeof(hello));
}

/* Messages of any size but the right one: EINVAL, and the connection lives. */
static void sizes(void)
{
	static const size_t lengths[] = {
		1,    4,    8, sizeof(struct vernic_request) - 1, sizeof(struct vernic_request) + 1,
		4096, 70000};
	static char junk[70000];
	struct raw r;

	CHECK_EQ(raw_start(&r), 0);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		memset(junk, (int)i, sizeof(junk));
		CHECK_EQ(raw_send(r.fd, junk, lengths[i], NULL, 0), 0);
		CHECK_EQ(raw_receive(&r, &r.reply, sizeof(r.reply)), sizeof(r.reply));
		CHECK_EQ(r.reply.status, EINVAL);
	}
	CHECK_EQ(raw_about(&r, VERNIC_CMD_STATUS, 0), 0);
	raw_end(&r);
}

/* Unknown commands; those that want a device before there is one. */
static void commands(void)
{
	static const uint32_t unknown[] = {0, VERNIC_CMD_COUNT, 1000, 0x80000000u, UINT32_MAX};
	struct raw r;

	CHECK_EQ(raw_start(&r), 0);
	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
		CHECK_EQ(raw_about(&r, unknown[i], 0), EINVAL);
	for (uint32_t c = VERNIC_CMD_QUERY_DEVICE; c < VERNIC_CMD_FAULT_ADD; c++)
		CHECK_EQ(raw_about(&r, c, 0), EINVAL);
	raw_end(&r);
}

static void opening(void)
{
	struct vernic_request req = {.command = VERNIC_CMD_OPEN_DEVICE};
	struct raw r;

	CHECK_EQ(raw_start(&r), 0);
	memset(req.open_device.name, 'x', sizeof(req.open_device.name));
	CHECK_EQ(raw_call(&r, &req), EINVAL);
	strcpy(req.open_device.name, "no such device");
	CHECK_EQ(raw_call(&r, &req), ENODEV);
	/* A word that is not there, and one that is another. */
	CHECK_EQ(raw_about(&r, VERNIC_CMD_LIST_DEVICES, 0), 0);
	memcpy(req.open_device.name, r.reply.list_devices.name, VERNIC_NAME_MAX);
	CHECK(raw_call(&r, &req) > 0);
	req.open_device.probe_addr = (uintptr_t)&req;
	CHECK(raw_call(&r, &req) > 0);
	req.open_device.probe_addr = UINT64_MAX - 3;
	CHECK(raw_call(&r, &req) > 0);
	CHECK_EQ(raw_open(&r), 0);
	CHECK(r.nfds >= 4);
	CHECK_EQ(raw_open(&r), EBUSY);
	raw_end(&r);
}

/* Descriptors nobody asked for, up to the most a message takes. */
static void descriptors(void)
{
	static const unsigned int counts[] = {1, 2, 3, 4, 5, 16, 253};
	struct vernic_request req = {.command = VERNIC_CMD_LIST_DEVICES};
	int fds[253];
	struct raw r;

	CHECK_EQ(raw_start(&r), 0);
	for (int i = 0; i < 253; i++)
		fds[i] = r.fd;
	for (int round = 0; round < 40; round++) {
		for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
			CHECK_EQ(raw_send(r.fd, &req, sizeof(req), fds, counts[i]), 0);
			CHECK_EQ(raw_receive(&r, &r.reply, sizeof(r.reply)), sizeof(r.reply));
		}
	}
	/* Something else for /proc/self/mem: it is not used, or it is refused. */
	CHECK_EQ(raw_about(&r, VERNIC_CMD_LIST_DEVICES, 0), 0);
	memcpy(req.open_device.name, r.reply.list_devices.name, VERNIC_NAME_MAX);
	req.command = VERNIC_CMD_OPEN_DEVICE;
	CHECK_EQ(raw_send(r.fd, &req, sizeof(req), fds, 253), 0);
	CHECK_EQ(raw_receive(&r, &r.reply, sizeof(r.reply)), sizeof(r.reply));
	CHECK(r.reply.status > 0);
	raw_end(&r);
}

/* Handles of nothing, and of another connection's objects. */
static void handles(void)
{
	static const uint32_t bad[] = {0, 1, 2, 63, 64, 65, 0x7fffffff, 0x80000000u, UINT32_MAX};
	static const uint32_t commands_with_handle[] = {
		VERNIC_CMD_DEALLOC_PD,	VERNIC_CMD_DEREG_MR,   VERNIC_CMD_DESTROY_CHANNEL,
		VERNIC_CMD_DESTROY_CQ,	VERNIC_CMD_MODIFY_SRQ, VERNIC_CMD_QUERY_SRQ,
		VERNIC_CMD_DESTROY_SRQ, VERNIC_CMD_MODIFY_QP,  VERNIC_CMD_QUERY_QP,
		VERNIC_CMD_DESTROY_QP,	VERNIC_CMD_CLOSE_XRCD,
	};
	static uint8_t memory[4096];
	struct vernic_request pd_req = {.command = VERNIC_CMD_ALLOC_PD};
	struct vernic_request mr = {.command = VERNIC_CMD_REG_MR};
	struct vernic_request cq = {.command = VERNIC_CMD_CREATE_CQ};
	struct vernic_request srq = {.command = VERNIC_CMD_CREATE_SRQ};
	struct vernic_request qp = {.command = VERNIC_CMD_CREATE_QP};
	struct raw owner, other;

	CHECK_EQ(raw_start(&owner), 0);
	CHECK_EQ(raw_open(&owner), 0);
	CHECK_EQ(raw_start(&other), 0);
	CHECK_EQ(raw_open(&other), 0);
	CHECK_EQ(raw_call(&owner, &pd_req), 0);
	mr.reg_mr.pd = srq.create_srq.pd = qp.create_qp.pd = owner.reply.handle;
	mr.reg_mr.addr = mr.reg_mr.iova = (uintptr_t)memory;
	mr.reg_mr.length = sizeof(memory);
	CHECK_EQ(raw_call(&owner, &mr), 0);
	CHECK_EQ(raw_about(&owner, VERNIC_CMD_CREATE_CHANNEL, 0), 0);
	cq.create_cq.cqe = 4;
	cq.create_cq.channel = owner.reply.handle;
	CHECK_EQ(raw_call(&owner, &cq), 0);
	qp.create_qp.send_cq = qp.create_qp.recv_cq = owner.reply.handle;
	srq.create_srq.attr.max_wr = 4;
	srq.create_srq.xrcd = UINT32_MAX;
	CHECK_EQ(raw_call(&owner, &srq), 0);
	qp.create_qp.srq = owner.reply.handle;
	qp.create_qp.qp_type = IBV_QPT_RC;
	CHECK_EQ(raw_call(&owner, &qp), 0);

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		for (size_t k = 0; k < sizeof(commands_with_handle) / sizeof(uint32_t); k++)
			CHECK_EQ(raw_about(&other, commands_with_handle[k], bad[i]), EINVAL);
		mr.reg_mr.pd = srq.create_srq.pd = qp.create_qp.pd = bad[i];
		qp.create_qp.send_cq = qp.create_qp.recv_cq = qp.create_qp.srq = bad[i];
		cq.create_cq.channel = bad[i];
		CHECK_EQ(raw_call(&other, &mr), EINVAL);
		CHECK_EQ(raw_call(&other, &srq), EINVAL);
		CHECK_EQ(raw_call(&other, &qp), EINVAL);
		if (bad[i] != UINT32_MAX) /* that one means none */
			CHECK_EQ(raw_call(&other, &cq), EINVAL);
	}
	/* In use: EBUSY, whatever the order. */
	CHECK_EQ(raw_about(&owner, VERNIC_CMD_DEALLOC_PD, 0), EBUSY);
	CHECK_EQ(raw_about(&owner, VERNIC_CMD_DESTROY_CHANNEL, 0), EBUSY);
	CHECK_EQ(raw_about(&owner, VERNIC_CMD_DESTROY_CQ, 0), EBUSY);
	CHECK_EQ(raw_about(&owner, VERNIC_CMD_DESTROY_SRQ, 0), EBUSY);
	CHECK_EQ(raw_about(&owner, VERNIC_CMD_DESTROY_QP, 0), 0);
	CHECK_EQ(raw_about(&owner, VERNIC_CMD_DESTROY_QP, 0), EINVAL);
	raw_end(&owner);
	raw_end(&other);
}

/* @return a number of any kind: small, near a power of two, anything */
static uint64_t any(uint64_t *seed)
{
	switch (raw_below(seed, 4)) {
	case 0:
		return raw_below(seed, 8);
	case 1:
		return (UINT64_C(1) << raw_below(seed, 64)) - 1 + raw_below(seed, 3);
	case 2:
		return UINT64_MAX - raw_below(seed, 5000);
	default:
		return raw_random(seed);
	}
}

/* Requests whose every word is any number, most with a good command. Each is answered. */
static void fuzz(uint64_t seed)
{
	double end = seconds() + 1.5;
	struct raw r;

	CHECK_EQ(raw_start(&r), 0);
	CHECK_EQ(raw_open(&r), 0);
	while (seconds() < end) {
		struct vernic_request req = {0};

		for (unsigned int i = 0; i < sizeof(req) / 8; i++) {
			uint64_t word = any(&seed);

			/* Two small fields are what most requests are made of. */
			if (raw_below(&seed, 3))
				word = raw_below(&seed, 20) | (uint64_t)raw_below(&seed, 20) << 32;
			memcpy((char *)&req + 8 * i, &word, 8);
		}
		if (raw_below(&seed, 100))
			req.command = raw_below(&seed, VERNIC_CMD_COUNT);
		req.handle = raw_below(&seed, 10) ? raw_below(&seed, 40) : (uint32_t)any(&seed);
		if (req.command == VERNIC_CMD_CREATE_QP && raw_below(&seed, 2))
			req.create_qp.qp_type = IBV_QPT_RC + raw_below(&seed, 3);
		if (req.command == VERNIC_CMD_CREATE_SRQ && raw_below(&seed, 2))
			req.create_srq.xrcd = UINT32_MAX;
		if (req.command == VERNIC_CMD_CREATE_CQ && raw_below(&seed, 2))
			req.create_cq.channel = UINT32_MAX;
		if (req.command == VERNIC_CMD_CREATE_QP && raw_below(&seed, 2))
			req.create_qp.srq = UINT32_MAX;
		/* What it makes would fill the memory of a small machine. */
		if (req.command == VERNIC_CMD_CREATE_CQ)
			req.create_cq.cqe &= 0x80003fff;
		CHECK(raw_call(&r, &req) >= 0);
	}
	raw_end(&r);
}

/* Connections that end in the middle of something. */
static void hang_ups(void)
{
	struct vernic_request req = {.command = VERNIC_CMD_CREATE_CQ};
	struct vernic_hello hello = {.magic = VERNIC_MAGIC, .version = VERNIC_ABI_VERSION};
	struct raw r;

	req.create_cq.cqe = 100;
	req.create_cq.channel = UINT32_MAX;
	for (int i = 0; i < 300; i++) {
		CHECK_EQ(raw_start(&r), 0);
		CHECK_EQ(raw_open(&r), 0);
		for (int k = 0; k < i % 8; k++)
			CHECK_EQ(raw_send(r.fd, &req, sizeof(req), NULL, 0), 0);
		if (i % 3 == 0)
			shutdown(r.fd, SHUT_RD);
		raw_end(&r);
	}
	for (int i = 0; i < 2000; i++) {
		int fd = raw_connect();

		CHECK(fd >= 0);
		if (i % 2)
			raw_send(fd, &hello, sizeof(hello) - i % 5, NULL, 0);
		close(fd);
	}
	/* Requests without an end, answers unread: the daemon drops the client, or it waits. */
	CHECK_EQ(raw_start(&r), 0);
	CHECK_EQ(raw_open(&r), 0);
	for (int i = 0; i < 20000; i++) {
		if (send(r.fd, &req, sizeof(req), MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
		    errno != EAGAIN)
			break;
	}
	raw_end(&r);
}

/* Many connections at once, silent ones and devices opened. */
static void crowd(void)
{
	enum { CROWD = 400 };
	static struct raw r[CROWD];
	int fds[CROWD];

	for (int i = 0; i < CROWD; i++) {
		fds[i] = raw_connect();
		CHECK(fds[i] >= 0);
	}
	for (int i = 0; i < CROWD / 8; i++) {
		CHECK_EQ(raw_start(&r[i]), 0);
		CHECK_EQ(raw_open(&r[i]), 0);
	}
	for (int i = 0; i < CROWD / 8; i++)
		raw_end(&r[i]);
	for (int i = 0; i < CROWD; i++)
		close(fds[i]);
}

/* CQs that are changed, and WQs: handles of nothing, and values that cannot be. */
static void queues(void)
{
	static const uint32_t by_handle[] = {VERNIC_CMD_RESIZE_CQ, VERNIC_CMD_MODIFY_CQ,
					     VERNIC_CMD_MODIFY_WQ, VERNIC_CMD_DESTROY_WQ,
					     VERNIC_CMD_DESTROY_RWQ_TABLE};
	static const uint32_t bad[] = {0, 1, 65, 0x7fffffff, 0x80000000u, UINT32_MAX};
	struct vernic_request pd = {.command = VERNIC_CMD_ALLOC_PD};
	struct vernic_request cq = {.command = VERNIC_CMD_CREATE_CQ,
				    .create_cq = {.cqe = 4, .channel = UINT32_MAX}};
	struct vernic_request resize = {.command = VERNIC_CMD_RESIZE_CQ};
	struct vernic_request modify = {.command = VERNIC_CMD_MODIFY_CQ};
	struct vernic_request wq = {.command = VERNIC_CMD_CREATE_WQ};
	struct vernic_request state = {.command = VERNIC_CMD_MODIFY_WQ};
	struct vernic_request table = {.command = VERNIC_CMD_CREATE_RWQ_TABLE};
	struct raw r;

	CHECK_EQ(raw_start(&r), 0);
	CHECK_EQ(raw_open(&r), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		for (size_t k = 0; k < sizeof(by_handle) / sizeof(by_handle[0]); k++)
			CHECK_EQ(raw_about(&r, by_handle[k], bad[i]), EINVAL);
	}
	CHECK_EQ(raw_call(&r, &pd), 0);
	wq.create_wq.pd = r.reply.handle;
	CHECK_EQ(raw_call(&r, &cq), 0);
	resize.handle = modify.handle = wq.create_wq.cq = r.reply.handle;
	modify.modify_cq.attr_mask = IBV_CQ_ATTR_MODERATE;
	for (size_t i = 3; i < sizeof(bad) / sizeof(bad[0]); i++) {
		resize.resize_cq.cqe = bad[i];
		CHECK_EQ(raw_call(&r, &resize), EINVAL);
		modify.modify_cq.count = bad[i];
		modify.modify_cq.period = 0;
		CHECK_EQ(raw_call(&r, &modify), EINVAL);
		modify.modify_cq.count = 0;
		modify.modify_cq.period = bad[i];
		CHECK_EQ(raw_call(&r, &modify), EINVAL);
		wq.create_wq.max_wr = bad[i];
		wq.create_wq.max_sge = 1;
		CHECK_EQ(raw_call(&r, &wq), EINVAL);
		wq.create_wq.max_wr = 1;
		wq.create_wq.max_sge = bad[i];
		CHECK_EQ(raw_call(&r, &wq), EINVAL);
		table.create_rwq_table.log_size = bad[i];
		CHECK_EQ(raw_call(&r, &table), EINVAL);
		table.create_rwq_table.log_size = 0;
		table.create_rwq_table.wq[0] = bad[i];
		CHECK_EQ(raw_call(&r, &table), EINVAL);
	}
	wq.create_wq.max_sge = 1;
	CHECK_EQ(raw_call(&r, &wq), 0);
	state.handle = r.reply.handle;
	for (size_t i = 3; i < sizeof(bad) / sizeof(bad[0]); i++) {
		state.modify_wq.state = bad[i];
		CHECK_EQ(raw_call(&r, &state), EINVAL);
	}
	raw_end(&r);
}

int main(void)
{
	struct honest *h = honest_start();
	pid_t pid = daemon_pid();
	unsigned int fds = daemon_fds(pid);
	void (*const attack[])(void) = {hellos,	 sizes,	 commands, opening, descriptors,
					handles, queues, hang_ups, crowd};

	for (size_t i = 0; i < sizeof(attack) / sizeof(attack[0]); i++) {
		attack[i]();
		honest_check(h);
		daemon_expect_fds(pid, fds);
	}
	for (uint64_t seed = 1; seed <= 2; seed++) {
		fuzz(seed);
		honest_check(h);
		daemon_expect_fds(pid, fds);
	}
	honest_stop(h);
	status_expect("pd", 0);
	status_expect("mr", 0);
	status_expect("cq", 0);
	status_expect("srq", 0);
	status_expect("qp", 0);
	return 0;
}
