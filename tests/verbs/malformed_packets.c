// SPDX-License-Identifier: BSD-2-Clause
/*
 * Each kind of packet that must not be, alone, and exactly what comes of it: dropped and counted,
 * or answered by its NAK with the QP in ERR and its event; and nothing else changes. Requests to
 * RC, UC and UD QPs, then answers to RC requests.
 *
 * The device has ADDRESS; this program is also its peer, at PEER.
 */
#include "peer.h"
#include "raw.h"

#define ADDRESS "127.86.0.1"
#define PEER "127.86.0.2"
#define STRANGER "127.86.0.3"
#define MTU 256
#define PEER_QPN 0x123450
#define REGION 16384	/* bytes registered, in the middle of the buffer */
#define FILL 0x77	/* what the buffer is full of */
#define PATIENCE 20000	/* ms for something to come */
#define OUTSTANDING 700 /* bytes of the READ that waits for an answer: 3 packets */

/* What is wrong with a packet beside its fields. */
enum wrong {
	RIGHT,
	WRONG_ICRC,
	WRONG_BYTE,    /* one of the payload, behind its ICRC */
	WRONG_VERSION, /* TVer 1 */
	WRONG_PKEY,
	LIMITED_PKEY, /* 0x7fff: of a limited member, fine */
	WRONG_PAD,    /* more than there is */
	WRONG_LENGTH, /* no multiple of 4 */
	WRONG_QPN,
	WRONG_KEY,    /* rkey, Q_Key */
	WRONG_SENDER, /* another host's address */
	CUT_HEADER,   /* it ends in its extended headers */
	CUT_BTH,      /* it ends in the BTH */
	CUT_ICRC,     /* it ends behind the BTH */
};

struct packet {
	uint8_t opcode;
	int32_t psn;
	uint32_t payload; /* bytes */
	enum wrong wrong;
	uint32_t length; /* of the RETH */
	uint32_t offset; /* of the RETH's or AtomicETH's address in the region */
	uint8_t syndrome;
	uint8_t flush; /* of the FETH: type */
};

/* What comes of the last packet of a case; those before it are good. */
enum outcome {
	DROPPED,  /* no answer, nothing changes; counted where a counter is named */
	TAKEN,	  /* answered by an ACK */
	REPLAYED, /* answered by an ACK of the newest PSN, and counted */
	NAKED,	  /* answered by the NAK; the QP stays */
	FAILED,	  /* answered by the NAK; the QP goes to ERR, with the event */
};

#define MAX_PACKETS 4
#define NO_EVENT (-1)

struct request_case {
	const char *name;
	enum outcome outcome;
	const char *counter; /* of the status, raised by 1 */
	uint8_t syndrome;    /* of the answer */
	int event;	     /* enum ibv_event_type, or NO_EVENT */
	struct packet packet[MAX_PACKETS];
};

#define OP(service, op) (WIRE_##service | WIRE_##op)
#define INVALID (AETH_NAK | NAK_INVALID_REQUEST), IBV_EVENT_QP_REQ_ERR
#define NO_ACCESS (AETH_NAK | NAK_REMOTE_ACCESS), IBV_EVENT_QP_ACCESS_ERR
#define MALFORMED DROPPED, "malformed", 0, NO_EVENT
#define NOT_OURS DROPPED, "rx_dropped", 0, NO_EVENT
#define DAMAGED DROPPED, "bad_icrc", 0, NO_EVENT
#define IGNORED DROPPED, NULL, 0, NO_EVENT
#define FORGOTTEN DROPPED, "duplicates", 0, NO_EVENT
#define AGAIN REPLAYED, "duplicates", 0, NO_EVENT
#define GAP NAKED, "out_of_sequence", AETH_NAK | NAK_PSN_SEQUENCE, NO_EVENT
#define FINE TAKEN, NULL, 0, NO_EVENT
#define REFUSED FAILED, NULL, INVALID
#define DENIED FAILED, NULL, NO_ACCESS

/* The first PSN due is 0. */
static const struct request_case rc_cases[] = {
	/* ---- what does not decode ---- */
	{"cut in the BTH", MALFORMED, {{.opcode = OP(RC, SEND_ONLY), 0, 0, CUT_BTH}}},
	{"cut behind the BTH", MALFORMED, {{.opcode = OP(RC, SEND_ONLY), 0, 0, CUT_ICRC}}},
	{"cut in the RETH", MALFORMED, {{.opcode = OP(RC, WRITE_ONLY), 0, 0, CUT_HEADER}}},
	{"cut in the AtomicETH", MALFORMED, {{.opcode = OP(RC, FETCH_ADD), 0, 0, CUT_HEADER}}},
	{"cut in the immediate", MALFORMED, {{.opcode = OP(RC, SEND_ONLY_IMM), 0, 0, CUT_HEADER}}},
	{"cut in the AETH", MALFORMED, {{.opcode = OP(RC, ACKNOWLEDGE), 0, 0, CUT_HEADER}}},
	{"opcode 0x15, reserved", MALFORMED, {{.opcode = 0x15, 0, 8}}},
	{"opcode 0x18, reserved", MALFORMED, {{.opcode = 0x18, 0, 8}}},
	{"opcode 0x1e, reserved", MALFORMED, {{.opcode = 0x1e, 0, 24}}},
	{"cut in the RETH of a FLUSH", MALFORMED, {{.opcode = OP(RC, FLUSH), 0, 0, CUT_HEADER}}},
	{"a FLUSH with payload", MALFORMED, {{.opcode = OP(RC, FLUSH), 0, 4, .flush = 1}}},
	{"opcode 0x44, RD", MALFORMED, {{.opcode = 0x44, 0, 8}}},
	{"cut in the XRCETH", MALFORMED, {{.opcode = OP(XRC, SEND_ONLY), 0, 0, CUT_HEADER}}},
	{"XRC to a RC QP", NOT_OURS, {{.opcode = OP(XRC, SEND_ONLY), 0, 8}}},
	{"opcode 0xff, of a manufacturer", MALFORMED, {{.opcode = 0xff, 0, 8}}},
	{"transport version 1", MALFORMED, {{.opcode = OP(RC, SEND_ONLY), 0, 8, WRONG_VERSION}}},
	{"more pad than payload", MALFORMED, {{.opcode = OP(RC, SEND_ONLY), 0, 0, WRONG_PAD}}},
	{"a length that is no multiple of 4",
	 MALFORMED,
	 {{.opcode = OP(RC, SEND_ONLY), 0, 8, WRONG_LENGTH}}},
	{"a READ request with payload",
	 MALFORMED,
	 {{.opcode = OP(RC, READ_REQUEST), 0, 4, .length = 4}}},
	{"an atomic with payload", MALFORMED, {{.opcode = OP(RC, FETCH_ADD), 0, 8}}},
	{"an ACK with payload", MALFORMED, {{.opcode = OP(RC, ACKNOWLEDGE), 0, 4}}},
	/* ---- what is damaged ---- */
	{"a bad ICRC", DAMAGED, {{.opcode = OP(RC, SEND_ONLY), 0, 8, WRONG_ICRC}}},
	{"a byte changed", DAMAGED, {{.opcode = OP(RC, SEND_ONLY), 0, 8, WRONG_BYTE}}},
	/* ---- what is for somebody else ---- */
	{"another P_Key", NOT_OURS, {{.opcode = OP(RC, SEND_ONLY), 0, 8, WRONG_PKEY}}},
	{"the P_Key of a limited member",
	 FINE,
	 {{.opcode = OP(RC, SEND_ONLY), 0, 8, LIMITED_PKEY}}},
	{"no such QP", NOT_OURS, {{.opcode = OP(RC, SEND_ONLY), 0, 8, WRONG_QPN}}},
	{"another sender", NOT_OURS, {{.opcode = OP(RC, SEND_ONLY), 0, 8, WRONG_SENDER}}},
	{"UC to a RC QP", NOT_OURS, {{.opcode = OP(UC, SEND_ONLY), 0, 8}}},
	{"UD to a RC QP", NOT_OURS, {{.opcode = OP(UD, SEND_ONLY), 0, 8}}},
	/* ---- PSNs ---- */
	{"a gap of one", GAP, {{.opcode = OP(RC, SEND_ONLY), 1, 8}}},
	{"the farthest PSN ahead", GAP, {{.opcode = OP(RC, SEND_ONLY), 0x7fffff, 8}}},
	{"the farthest PSN behind", AGAIN, {{.opcode = OP(RC, SEND_ONLY), 0x800000, 8}}},
	{"a duplicate SEND",
	 AGAIN,
	 {{.opcode = OP(RC, SEND_ONLY), 0, 8}, {.opcode = OP(RC, SEND_ONLY), 0, 8}}},
	{"a duplicate WRITE of another length",
	 AGAIN,
	 {{.opcode = OP(RC, SEND_ONLY), 0, 8},
	  {.opcode = OP(RC, WRITE_ONLY), 0, 100, .length = 7}}},
	{"a duplicate READ of a key there is not",
	 FORGOTTEN,
	 {{.opcode = OP(RC, SEND_ONLY), 0, 8},
	  {.opcode = OP(RC, READ_REQUEST), 0, 0, WRONG_KEY, .length = 8}}},
	{"a duplicate READ beyond the region",
	 FORGOTTEN,
	 {{.opcode = OP(RC, SEND_ONLY), 0, 8},
	  {.opcode = OP(RC, READ_REQUEST), 0, 0, .length = REGION + 1}}},
	{"a duplicate of an atomic that never was",
	 FORGOTTEN,
	 {{.opcode = OP(RC, SEND_ONLY), 0, 8}, {.opcode = OP(RC, FETCH_ADD), 0, 0}}},
	/* ---- lengths (IBTA 9.7.4.1.6) ---- */
	{"SEND First of less than the MTU", REFUSED, {{.opcode = OP(RC, SEND_FIRST), 0, MTU - 4}}},
	{"SEND First of nothing", REFUSED, {{.opcode = OP(RC, SEND_FIRST), 0, 0}}},
	{"SEND First of more than the MTU", REFUSED, {{.opcode = OP(RC, SEND_FIRST), 0, MTU + 4}}},
	{"SEND Only of more than the MTU", REFUSED, {{.opcode = OP(RC, SEND_ONLY), 0, MTU + 1}}},
	{"SEND Middle of less than the MTU",
	 REFUSED,
	 {{.opcode = OP(RC, SEND_FIRST), 0, MTU}, {.opcode = OP(RC, SEND_MIDDLE), 1, MTU - 1}}},
	{"SEND Middle of more than the MTU",
	 REFUSED,
	 {{.opcode = OP(RC, SEND_FIRST), 0, MTU}, {.opcode = OP(RC, SEND_MIDDLE), 1, MTU + 1}}},
	{"SEND Last of nothing",
	 REFUSED,
	 {{.opcode = OP(RC, SEND_FIRST), 0, MTU}, {.opcode = OP(RC, SEND_LAST), 1, 0}}},
	{"SEND Last with immediate of nothing",
	 REFUSED,
	 {{.opcode = OP(RC, SEND_FIRST), 0, MTU}, {.opcode = OP(RC, SEND_LAST_IMM), 1, 0}}},
	{"SEND Last of more than the MTU",
	 REFUSED,
	 {{.opcode = OP(RC, SEND_FIRST), 0, MTU}, {.opcode = OP(RC, SEND_LAST), 1, MTU + 1}}},
	{"WRITE First of less than the MTU",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_FIRST), 0, MTU - 4, .length = 2 * MTU}}},
	{"WRITE Only of less than it says",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_ONLY), 0, 99, .length = 100}}},
	{"WRITE Only of more than it says",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_ONLY), 0, 101, .length = 100}}},
	{"WRITE Only of nothing but a length",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_ONLY), 0, 0, .length = 1}}},
	{"WRITE Last: less in all than it said",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_FIRST), 0, MTU, .length = MTU + 9},
	  {.opcode = OP(RC, WRITE_LAST), 1, 8}}},
	{"WRITE Last: more in all than it said",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_FIRST), 0, MTU, .length = MTU + 7},
	  {.opcode = OP(RC, WRITE_LAST), 1, 8}}},
	{"WRITE Middle: more in all than it said",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_FIRST), 0, MTU, .length = MTU + 8},
	  {.opcode = OP(RC, WRITE_MIDDLE), 1, MTU}}},
	{"WRITE First: more than it says",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_FIRST), 0, MTU, .length = MTU - 1}}},
	{"WRITE Last of nothing",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_FIRST), 0, MTU, .length = MTU},
	  {.opcode = OP(RC, WRITE_LAST), 1, 0}}},
	{"READ of more than a message may have",
	 REFUSED,
	 {{.opcode = OP(RC, READ_REQUEST), 0, 0, .length = UINT32_MAX}}},
	/* ---- places (IBTA 9.7.4.1.3) ---- */
	{"SEND Middle without a First", REFUSED, {{.opcode = OP(RC, SEND_MIDDLE), 0, MTU}}},
	{"SEND Last without a First", REFUSED, {{.opcode = OP(RC, SEND_LAST), 0, 8}}},
	{"WRITE Middle without a First", REFUSED, {{.opcode = OP(RC, WRITE_MIDDLE), 0, MTU}}},
	{"WRITE Last without a First", REFUSED, {{.opcode = OP(RC, WRITE_LAST), 0, 8}}},
	{"SEND First in a SEND",
	 REFUSED,
	 {{.opcode = OP(RC, SEND_FIRST), 0, MTU}, {.opcode = OP(RC, SEND_FIRST), 1, MTU}}},
	{"SEND Only in a SEND",
	 REFUSED,
	 {{.opcode = OP(RC, SEND_FIRST), 0, MTU}, {.opcode = OP(RC, SEND_ONLY), 1, 8}}},
	{"WRITE Middle in a SEND",
	 REFUSED,
	 {{.opcode = OP(RC, SEND_FIRST), 0, MTU}, {.opcode = OP(RC, WRITE_MIDDLE), 1, MTU}}},
	{"SEND Last in a WRITE",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_FIRST), 0, MTU, .length = 2 * MTU},
	  {.opcode = OP(RC, SEND_LAST), 1, MTU}}},
	{"a READ in a SEND",
	 REFUSED,
	 {{.opcode = OP(RC, SEND_FIRST), 0, MTU},
	  {.opcode = OP(RC, READ_REQUEST), 1, 0, .length = 8}}},
	{"an atomic in a WRITE",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_FIRST), 0, MTU, .length = 2 * MTU},
	  {.opcode = OP(RC, FETCH_ADD), 1, 0}}},
	/* ---- access ---- */
	{"WRITE of a key there is not",
	 DENIED,
	 {{.opcode = OP(RC, WRITE_ONLY), 0, 8, WRONG_KEY, .length = 8}}},
	{"WRITE beyond the region",
	 DENIED,
	 {{.opcode = OP(RC, WRITE_ONLY), 0, 8, .length = 8, .offset = REGION - 7}}},
	{"WRITE First: beyond the region in the end",
	 DENIED,
	 {{.opcode = OP(RC, WRITE_FIRST), 0, MTU, .length = REGION + 1}}},
	{"WRITE of more than a message may have",
	 DENIED,
	 {{.opcode = OP(RC, WRITE_FIRST), 0, MTU, .length = UINT32_MAX}}},
	{"READ of a key there is not",
	 DENIED,
	 {{.opcode = OP(RC, READ_REQUEST), 0, 0, WRONG_KEY, .length = 8}}},
	{"READ beyond the region",
	 DENIED,
	 {{.opcode = OP(RC, READ_REQUEST), 0, 0, .length = REGION + 1}}},
	{"atomic of a key there is not", DENIED, {{.opcode = OP(RC, FETCH_ADD), 0, 0, WRONG_KEY}}},
	{"atomic beyond the region",
	 DENIED,
	 {{.opcode = OP(RC, COMPARE_SWAP), 0, 0, .offset = REGION}}},
	{"atomic at an odd address", REFUSED, {{.opcode = OP(RC, FETCH_ADD), 0, 0, .offset = 4}}},
	{"atomic at an odd address, of a key there is not",
	 REFUSED,
	 {{.opcode = OP(RC, COMPARE_SWAP), 0, 0, WRONG_KEY, .offset = 1}}},
	/* ---- ATOMIC WRITE and FLUSH (IBTA A19) ---- */
	{"ATOMIC WRITE of 4 bytes", REFUSED, {{.opcode = OP(RC, ATOMIC_WRITE), 0, 4, .length = 8}}},
	{"ATOMIC WRITE of 12 bytes",
	 REFUSED,
	 {{.opcode = OP(RC, ATOMIC_WRITE), 0, 12, .length = 8}}},
	{"ATOMIC WRITE that says 16 bytes",
	 REFUSED,
	 {{.opcode = OP(RC, ATOMIC_WRITE), 0, 8, .length = 16}}},
	{"ATOMIC WRITE at an odd address",
	 REFUSED,
	 {{.opcode = OP(RC, ATOMIC_WRITE), 0, 8, .length = 8, .offset = 4}}},
	{"ATOMIC WRITE in a WRITE",
	 REFUSED,
	 {{.opcode = OP(RC, WRITE_FIRST), 0, MTU, .length = 2 * MTU},
	  {.opcode = OP(RC, ATOMIC_WRITE), 1, 8, .length = 8}}},
	{"ATOMIC WRITE of a key there is not",
	 DENIED,
	 {{.opcode = OP(RC, ATOMIC_WRITE), 0, 8, WRONG_KEY, .length = 8}}},
	{"ATOMIC WRITE beyond the region",
	 DENIED,
	 {{.opcode = OP(RC, ATOMIC_WRITE), 0, 8, .length = 8, .offset = REGION}}},
	{"a FLUSH of nothing", REFUSED, {{.opcode = OP(RC, FLUSH), 0, 0, .length = 8}}},
	{"a FLUSH of a reserved type",
	 REFUSED,
	 {{.opcode = OP(RC, FLUSH), 0, 0, .length = 8, .flush = 5}}},
	{"a FLUSH that the QP does not allow",
	 REFUSED,
	 {{.opcode = OP(RC, FLUSH), 0, 0, .length = 8, .flush = VERNIC_FLUSH_GLOBAL}}},
	/* ---- answers nobody asked for ---- */
	{"an ACK out of nothing", IGNORED, {{.opcode = OP(RC, ACKNOWLEDGE), 0, 0}}},
	{"a NAK out of nothing",
	 IGNORED,
	 {{.opcode = OP(RC, ACKNOWLEDGE), 0, 0, .syndrome = AETH_NAK | NAK_REMOTE_OPERATION}}},
	{"an RNR NAK out of nothing",
	 IGNORED,
	 {{.opcode = OP(RC, ACKNOWLEDGE), 0, 0, .syndrome = AETH_RNR_NAK | 1}}},
	{"a READ response out of nothing",
	 IGNORED,
	 {{.opcode = OP(RC, READ_RESPONSE_ONLY), 0, 64}}},
	{"an atomic response out of nothing",
	 IGNORED,
	 {{.opcode = OP(RC, ATOMIC_ACKNOWLEDGE), 0, 0}}},
};

/* UC answers nothing: a message that is wrong is dropped, the next one is taken. */
static const struct request_case uc_cases[] = {
	{"opcode 0x2c, READ over UC", MALFORMED, {{.opcode = 0x2c, 0, 16}}},
	{"opcode 0x34, an atomic over UC", MALFORMED, {{.opcode = 0x34, 0, 28}}},
	{"a bad ICRC", DAMAGED, {{.opcode = OP(UC, SEND_ONLY), 0, 8, WRONG_ICRC}}},
	{"another P_Key", NOT_OURS, {{.opcode = OP(UC, SEND_ONLY), 0, 8, WRONG_PKEY}}},
	{"another sender", NOT_OURS, {{.opcode = OP(UC, SEND_ONLY), 0, 8, WRONG_SENDER}}},
	{"RC to a UC QP", NOT_OURS, {{.opcode = OP(RC, SEND_ONLY), 0, 8}}},
	{"an ACK to a UC QP", NOT_OURS, {{.opcode = OP(RC, ACKNOWLEDGE), 0, 0}}},
	{"SEND First of less than the MTU", NOT_OURS, {{.opcode = OP(UC, SEND_FIRST), 0, MTU - 4}}},
	{"SEND Only of more than the MTU", NOT_OURS, {{.opcode = OP(UC, SEND_ONLY), 0, MTU + 4}}},
	{"SEND Middle without a First", NOT_OURS, {{.opcode = OP(UC, SEND_MIDDLE), 0, MTU}}},
	{"SEND Middle of less than the MTU",
	 NOT_OURS,
	 {{.opcode = OP(UC, SEND_FIRST), 0, MTU}, {.opcode = OP(UC, SEND_MIDDLE), 1, MTU - 4}}},
	{"SEND Last of nothing",
	 NOT_OURS,
	 {{.opcode = OP(UC, SEND_FIRST), 0, MTU}, {.opcode = OP(UC, SEND_LAST), 1, 0}}},
	{"SEND Last behind a gap",
	 NOT_OURS,
	 {{.opcode = OP(UC, SEND_FIRST), 0, MTU}, {.opcode = OP(UC, SEND_LAST), 2, 8}}},
	{"WRITE Last in a SEND",
	 NOT_OURS,
	 {{.opcode = OP(UC, SEND_FIRST), 0, MTU}, {.opcode = OP(UC, WRITE_LAST), 1, 8}}},
	{"WRITE Only of less than it says",
	 NOT_OURS,
	 {{.opcode = OP(UC, WRITE_ONLY), 0, 99, .length = 100}}},
	{"WRITE Last: more in all than it said",
	 NOT_OURS,
	 {{.opcode = OP(UC, WRITE_FIRST), 0, MTU, .length = MTU + 7},
	  {.opcode = OP(UC, WRITE_LAST), 1, 8}}},
	{"WRITE of a key there is not",
	 NOT_OURS,
	 {{.opcode = OP(UC, WRITE_ONLY), 0, 8, WRONG_KEY, .length = 8}}},
	{"WRITE beyond the region",
	 NOT_OURS,
	 {{.opcode = OP(UC, WRITE_ONLY), 0, 8, .length = 8, .offset = REGION - 7}}},
};

static const struct request_case ud_cases[] = {
	{"cut in the DETH", MALFORMED, {{.opcode = OP(UD, SEND_ONLY), 0, 0, CUT_HEADER}}},
	{"opcode 0x60, a First over UD", MALFORMED, {{.opcode = 0x60, 0, 8}}},
	{"a bad ICRC", DAMAGED, {{.opcode = OP(UD, SEND_ONLY), 0, 8, WRONG_ICRC}}},
	{"another P_Key", NOT_OURS, {{.opcode = OP(UD, SEND_ONLY), 0, 8, WRONG_PKEY}}},
	{"another Q_Key", NOT_OURS, {{.opcode = OP(UD, SEND_ONLY), 0, 8, WRONG_KEY}}},
	{"another Q_Key, with immediate",
	 NOT_OURS,
	 {{.opcode = OP(UD, SEND_ONLY_IMM), 0, 8, WRONG_KEY}}},
	{"no such QP", NOT_OURS, {{.opcode = OP(UD, SEND_ONLY), 0, 8, WRONG_QPN}}},
	{"RC to a UD QP", NOT_OURS, {{.opcode = OP(RC, SEND_ONLY), 0, 8}}},
	{"an ACK to a UD QP", NOT_OURS, {{.opcode = OP(RC, ACKNOWLEDGE), 0, 0}}},
	{"longer than the receive", NOT_OURS, {{.opcode = OP(UD, SEND_ONLY), 0, 1200}}},
};

/* ---- the test's surroundings ------------------------------------------------------------------
 */

struct test {
	struct env e;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct peer peer, stranger;
	const char *name; /* of the case under way */
};

/* Ends the program with the case's name. */
#define EXPECT(t, cond)                                                                           \
	do {                                                                                      \
		if (!(cond)) {                                                                    \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, (t)->name, \
				#cond);                                                           \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

#define RECV_SIZE (4 * MTU)

/* A QP in RTS whose peer is us, with a receive of RECV_SIZE bytes in the lower half. */
static void make_qp(struct test *t, enum ibv_qp_type type)
{
	bool rc = type == IBV_QPT_RC, ud = type == IBV_QPT_UD;
	struct ibv_qp_init_attr init = env_qp_attr(&t->e);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
		.path_mtu = IBV_MTU_256,
		.dest_qp_num = PEER_QPN,
		.max_dest_rd_atomic = 4,
		.max_rd_atomic = 4,
		.min_rnr_timer = 1,
		.timeout = 0, /* nothing is sent again but what a test asks for */
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = {.is_global = 1,
			    .port_num = 1,
			    .grh = {.dgid = t->peer.gid, .sgid_index = 1, .hop_limit = 64}}};
	struct ibv_sge in = {(uintptr_t)t->e.buf + REGION, RECV_SIZE, t->mr->lkey};

	memset(t->e.buf, FILL, BUF_SIZE);
	init.qp_type = type;
	init.send_cq = init.recv_cq = t->cq;
	t->qp = ibv_create_qp(t->e.pd, &init);
	CHECK(t->qp);
	CHECK_EQ(ibv_modify_qp(t->qp, &attr,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
		 0);
	CHECK_EQ(post_recv_at(t->qp, 1, &in), 0);
	CHECK_EQ(post_recv_at(t->qp, 2, &in), 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_EQ(ibv_modify_qp(t->qp, &attr,
			       IBV_QP_STATE |
				       (ud ? 0
					   : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
							IBV_QP_RQ_PSN) |
				       (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)),
		 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(t->qp, &attr,
			       IBV_QP_STATE | IBV_QP_SQ_PSN |
				       (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
							IBV_QP_MAX_QP_RD_ATOMIC
					   : 0)),
		 0);
}

static void end_qp(struct test *t)
{
	struct ibv_wc wc;

	CHECK_EQ(ibv_destroy_qp(t->qp), 0);
	while (ibv_poll_cq(t->cq, 1, &wc) > 0)
		;
}

/* Sends a packet as a case describes it. */
static void send_packet(struct test *t, const struct packet *d)
{
	const struct wire_opcode *op = &wire_opcodes[d->opcode];
	uint32_t key = d->wrong == WRONG_KEY ? t->mr->rkey ^ 1 : t->mr->rkey;
	uint64_t va = (uintptr_t)t->e.buf + REGION + d->offset;
	struct wire_packet p = {
		.opcode = d->opcode,
		.ackreq = true,
		.pad = -d->payload & 3,
		.pkey = d->wrong == WRONG_PKEY	   ? 0x1234
			: d->wrong == LIMITED_PKEY ? 0x7fff
						   : 0xffff,
		.dest_qpn = d->wrong == WRONG_QPN ? t->qp->qp_num ^ 0x800000 : t->qp->qp_num,
		.psn = (uint32_t)d->psn & PSN_MASK,
		.feth = {d->flush, 0},
		.reth = {va, key, d->length},
		.atomic = {va, key, 1, 0},
		.aeth = {d->syndrome, 0},
		.atomic_orig = 1,
		.deth = {d->wrong == WRONG_KEY ? 2 : 1, PEER_QPN},
	};
	static uint8_t buf[PEER_PACKET];
	size_t head, len;

	/* What has no headers of its own here: the BTH, and payload for the rest. */
	head = op->name ? wire_encode(buf, &p) : BTH_LEN;
	if (!op->name) {
		p.opcode = OP(RC, SEND_ONLY);
		wire_encode(buf, &p);
		buf[0] = d->opcode;
	}
	memset(buf + head, 0x11, d->payload);
	memset(buf + head + d->payload, 0, 4);
	len = head + d->payload + p.pad;
	switch (d->wrong) {
	case WRONG_VERSION:
		buf[1] |= 1;
		break;
	case WRONG_PAD:
		buf[1] |= 0x30;
		break;
	case WRONG_LENGTH:
		len += 1;
		break;
	case CUT_HEADER:
		len = head - 4;
		break;
	case WRONG_SENDER:
		peer_send(&t->stranger, buf, len, 0);
		return;
	case CUT_BTH:
		peer_send_raw(&t->peer, buf, BTH_LEN - 1);
		return;
	case CUT_ICRC:
		peer_send_raw(&t->peer, buf, BTH_LEN + ICRC_LEN - 1);
		return;
	case WRONG_BYTE: {
		uint32_t icrc = icrc_compute(&t->peer.icrc, 0, buf, len);

		/* By more bits than the check leaves open. */
		buf[head] ^= 0x40;
		peer_send(&t->peer, buf, len, icrc ^ icrc_compute(&t->peer.icrc, 0, buf, len));
		return;
	}
	default:
		break;
	}
	peer_send(&t->peer, buf, len, d->wrong == WRONG_ICRC ? 0x80000001 : 0);
}

/* The next packet must be an answer of this kind. */
static void expect_answer(struct test *t, uint8_t syndrome, uint32_t psn)
{
	struct peer_packet in;

	EXPECT(t, peer_receive(&t->peer, &in, PATIENCE));
	EXPECT(t, in.pkt.opcode == OP(RC, ACKNOWLEDGE) && in.pkt.dest_qpn == PEER_QPN);
	if (in.pkt.aeth.syndrome != syndrome || in.pkt.psn != (psn & PSN_MASK))
		fprintf(stderr, "%s: syndrome %#x PSN %#x, not %#x PSN %#x\n", t->name,
			in.pkt.aeth.syndrome, in.pkt.psn, syndrome, psn & PSN_MASK);
	EXPECT(t, in.pkt.aeth.syndrome == syndrome && in.pkt.psn == (psn & PSN_MASK));
}

static void expect_state(struct test *t, enum ibv_qp_state state)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK_EQ(ibv_query_qp(t->qp, &attr, IBV_QP_STATE, &init), 0);
	EXPECT(t, attr.qp_state == state);
}

/* What is in the buffer: the region where nothing was written, and all around it. */
static void expect_untouched(struct test *t, bool region)
{
	for (int i = 0; i < BUF_SIZE; i++)
		if (region || i < REGION || i >= 2 * REGION)
			EXPECT(t, t->e.buf[i] == FILL);
}

/* An event comes, or none has. */
static void expect_event(struct test *t, int type)
{
	struct pollfd ready = {.fd = t->e.ctx->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	EXPECT(t, poll(&ready, 1, type == NO_EVENT ? 0 : PATIENCE) == (type != NO_EVENT));
	if (type == NO_EVENT)
		return;
	CHECK_EQ(ibv_get_async_event(t->e.ctx, &event), 0);
	EXPECT(t, (int)event.event_type == type && event.element.qp == t->qp);
	ibv_ack_async_event(&event);
}

/* ---- requests ------------------------------------------------------------------------------- */

/*
 * The QP takes a good message now: answers come in order, so whatever was answered before would
 * have been seen.
 */
static void expect_alive(struct test *t, enum ibv_qp_type type, uint32_t psn)
{
	struct packet good = {.psn = (int32_t)psn, .payload = 8};
	struct ibv_wc wc;

	good.opcode = type == IBV_QPT_RC   ? OP(RC, SEND_ONLY)
		      : type == IBV_QPT_UC ? OP(UC, SEND_ONLY)
					   : OP(UD, SEND_ONLY);
	send_packet(t, &good);
	wait_wc(t->cq, 1, &wc);
	EXPECT(t, wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
	EXPECT(t, wc.byte_len == 8 + (type == IBV_QPT_UD ? 40 : 0));
	if (type == IBV_QPT_RC)
		expect_answer(t, AETH_ACK | AETH_NO_CREDITS, psn);
	expect_state(t, IBV_QPS_RTS);
}

/* Takes the CQE and the ACK of a good packet that is a message of its own. */
static void take_message(struct test *t, const struct packet *d)
{
	struct ibv_wc wc;

	if (d->opcode != OP(RC, SEND_ONLY))
		return;
	wait_wc(t->cq, 1, &wc);
	EXPECT(t, wc.status == IBV_WC_SUCCESS);
	expect_answer(t, AETH_ACK | AETH_NO_CREDITS, (uint32_t)d->psn);
}

static void run_request(struct test *t, enum ibv_qp_type type, const struct request_case *c)
{
	bool rc = type == IBV_QPT_RC, started = false;
	uint32_t next = 0; /* the PSN that is due */
	struct ibv_wc wc[2];
	int last = 0;
	long before;

	t->name = c->name;
	make_qp(t, type);
	while (last + 1 < MAX_PACKETS &&
	       (c->packet[last + 1].opcode || c->packet[last + 1].payload))
		last++;
	for (int i = 0; i < last; i++) {
		send_packet(t, &c->packet[i]);
		if (rc) {
			take_message(t, &c->packet[i]);
			if (c->packet[i].opcode != OP(RC, SEND_ONLY)) {
				/* A First is acknowledged as asked. */
				expect_answer(t, AETH_ACK | AETH_NO_CREDITS,
					      (uint32_t)c->packet[i].psn);
				started = true;
			}
		}
		next = (uint32_t)c->packet[i].psn + 1;
	}
	before = c->counter ? status_sum(c->counter) : 0;
	send_packet(t, &c->packet[last]);
	switch (c->outcome) {
	case DROPPED:
		EXPECT(t, !started);
		/* A message of UC ends with what was wrong. */
		expect_alive(t, type, rc ? next : (uint32_t)c->packet[last].psn + 1);
		break;
	case TAKEN:
		take_message(t, &c->packet[last]);
		expect_alive(t, type, next + 1);
		break;
	case REPLAYED:
		expect_answer(t, AETH_ACK | AETH_NO_CREDITS, next - 1);
		if (next == 0)
			expect_alive(t, type, next);
		break;
	case NAKED:
		expect_answer(t, c->syndrome, next);
		expect_alive(t, type, next);
		break;
	case FAILED:
		expect_answer(t, c->syndrome, next);
		/* Both receives come back; one of a message under way, too. */
		wait_wc(t->cq, 2, wc);
		EXPECT(t, wc[0].status == IBV_WC_WR_FLUSH_ERR && wc[0].wr_id == 1);
		EXPECT(t, wc[1].status == IBV_WC_WR_FLUSH_ERR && wc[1].wr_id == 2);
		expect_state(t, IBV_QPS_ERR);
		break;
	}
	expect_event(t, c->event);
	if (c->counter && status_sum(c->counter) != before + 1)
		fprintf(stderr, "%s: %s went from %ld to %ld\n", t->name, c->counter, before,
			status_sum(c->counter));
	EXPECT(t, !c->counter || status_sum(c->counter) == before + 1);
	/* Receives begin at the start of the region; nothing else was to be written but a First. */
	expect_untouched(t, c->outcome == FAILED && last == 0);
	end_qp(t);
}

/* ---- answers -------------------------------------------------------------------------------- */

/* What comes of an answer. */
struct answer_case {
	const char *name;
	bool read;		   /* a READ waits, else a SEND */
	enum ibv_wc_status status; /* SUCCESS: ignored, the right answer completes it then */
	struct packet packet;
};

static const struct answer_case answer_cases[] = {
	{"ACK of a PSN never sent", false, IBV_WC_SUCCESS, {.opcode = OP(RC, ACKNOWLEDGE), 1, 0}},
	{"ACK of a PSN far ahead",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0x7fffff, 0}},
	{"ACK of a PSN far behind",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0x800000, 0}},
	{"ACK of the PSN before", false, IBV_WC_SUCCESS, {.opcode = OP(RC, ACKNOWLEDGE), -1, 0}},
	{"ACK for another P_Key",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0, 0, WRONG_PKEY}},
	{"ACK of another sender",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0, 0, WRONG_SENDER}},
	{"ACK with a bad ICRC",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0, 0, WRONG_ICRC}},
	{"NAK of a PSN never sent",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), 1, 0, .syndrome = AETH_NAK | NAK_REMOTE_OPERATION}},
	{"NAK of the PSN before",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), -1, 0, .syndrome = AETH_NAK | NAK_REMOTE_OPERATION}},
	{"RNR NAK of a PSN never sent",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), 1, 0, .syndrome = AETH_RNR_NAK}},
	{"NAK code 5, reserved",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0, 0, .syndrome = 0x65}},
	{"NAK code 31, reserved",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0, 0, .syndrome = 0x7f}},
	{"AETH class 2, reserved",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0, 0, .syndrome = 0x40}},
	{"READ response to a SEND",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, READ_RESPONSE_ONLY), 0, 8}},
	{"atomic response to a SEND",
	 false,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ATOMIC_ACKNOWLEDGE), 0, 0}},
	{"NAK code 1",
	 false,
	 IBV_WC_REM_INV_REQ_ERR,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0, 0, .syndrome = AETH_NAK | NAK_INVALID_REQUEST}},
	{"NAK code 2",
	 false,
	 IBV_WC_REM_ACCESS_ERR,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0, 0, .syndrome = AETH_NAK | NAK_REMOTE_ACCESS}},
	{"NAK code 3",
	 false,
	 IBV_WC_REM_OP_ERR,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0, 0, .syndrome = AETH_NAK | NAK_REMOTE_OPERATION}},
	{"NAK code 4",
	 false,
	 IBV_WC_REM_INV_RD_REQ_ERR,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0, 0, .syndrome = AETH_NAK | NAK_INVALID_RD_REQUEST}},
	{"atomic response to a READ",
	 true,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ATOMIC_ACKNOWLEDGE), 0, 0}},
	{"READ response of a PSN never asked for",
	 true,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, READ_RESPONSE_ONLY), 3, 8}},
	{"READ response of the PSN before",
	 true,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, READ_RESPONSE_ONLY), -1, 8}},
	{"READ response First of more than the MTU",
	 true,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, READ_RESPONSE_FIRST), 0, MTU + 4}},
	{"READ response First of less than the MTU",
	 true,
	 IBV_WC_BAD_RESP_ERR,
	 {.opcode = OP(RC, READ_RESPONSE_FIRST), 0, MTU - 4}},
	{"READ response Only in place of a First",
	 true,
	 IBV_WC_BAD_RESP_ERR,
	 {.opcode = OP(RC, READ_RESPONSE_ONLY), 0, 8}},
	{"NAK instead of a READ response",
	 true,
	 IBV_WC_REM_ACCESS_ERR,
	 {.opcode = OP(RC, ACKNOWLEDGE), 0, 0, .syndrome = AETH_NAK | NAK_REMOTE_ACCESS}},
	{"NAK of a READ response in its middle",
	 true,
	 IBV_WC_SUCCESS,
	 {.opcode = OP(RC, ACKNOWLEDGE), 2, 0, .syndrome = 0x7f}},
};

static void run_answer(struct test *t, const struct answer_case *c)
{
	struct packet good[3] = {{.opcode = OP(RC, ACKNOWLEDGE), 0, 0}};
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1};
	struct ibv_send_wr *bad;
	struct peer_packet in;
	struct ibv_wc wc[3];

	t->name = c->name;
	make_qp(t, IBV_QPT_RC);
	sge = (struct ibv_sge){(uintptr_t)t->e.buf + REGION, c->read ? OUTSTANDING : 8,
			       t->mr->lkey};
	wr.opcode = c->read ? IBV_WR_RDMA_READ : IBV_WR_SEND;
	wr.send_flags = IBV_SEND_SIGNALED;
	if (c->read) {
		good[0] = (struct packet){.opcode = OP(RC, READ_RESPONSE_FIRST), 0, MTU};
		good[1] = (struct packet){.opcode = OP(RC, READ_RESPONSE_MIDDLE), 1, MTU};
		good[2] = (struct packet){
			.opcode = OP(RC, READ_RESPONSE_LAST), 2, OUTSTANDING - 2 * MTU};
	}
	CHECK_EQ(ibv_post_send(t->qp, &wr, &bad), 0);
	EXPECT(t, peer_receive(&t->peer, &in, PATIENCE));
	EXPECT(t, in.pkt.psn == 0 && in.pkt.ackreq);
	send_packet(t, &c->packet);
	if (c->status == IBV_WC_SUCCESS) {
		EXPECT(t, ibv_poll_cq(t->cq, 1, wc) == 0);
		for (unsigned int i = 0; i < (c->read ? 3 : 1); i++)
			send_packet(t, &good[i]);
		wait_wc(t->cq, 1, wc);
		EXPECT(t, wc[0].status == IBV_WC_SUCCESS && wc[0].wr_id == 9);
		expect_state(t, IBV_QPS_RTS);
	} else {
		wait_wc(t->cq, 3, wc);
		EXPECT(t, wc[0].status == c->status && wc[0].wr_id == 9);
		EXPECT(t, wc[1].status == IBV_WC_WR_FLUSH_ERR && wc[1].wr_id == 1);
		EXPECT(t, wc[2].status == IBV_WC_WR_FLUSH_ERR && wc[2].wr_id == 2);
		expect_state(t, IBV_QPS_ERR);
	}
	expect_event(t, NO_EVENT);
	expect_untouched(t, !c->read || c->status != IBV_WC_SUCCESS);
	end_qp(t);
	/* An answer that was no answer may have had the request sent again. */
	while (peer_receive(&t->peer, &in, 0))
		;
}

/* ---- QPs that take nothing ------------------------------------------------------------------ */

/* In RESET, INIT and ERR everything is dropped and counted; no answer tells of the QP. */
static void run_states(struct test *t)
{
	static const struct packet send = {.opcode = OP(RC, SEND_ONLY), 0, 8},
				   ack = {.opcode = OP(RC, ACKNOWLEDGE), 0, 0};
	static const enum ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_ERR};
	struct peer_packet in;

	for (int i = 0; i < 3; i++) {
		long before;

		t->name = "a QP in RESET, INIT or ERR";
		make_qp(t, IBV_QPT_RC);
		if (states[i] != IBV_QPS_ERR)
			to_state(t->qp, IBV_QPS_RESET);
		if (states[i] == IBV_QPS_INIT)
			to_init(t->qp);
		if (states[i] == IBV_QPS_ERR)
			to_state(t->qp, IBV_QPS_ERR);
		before = status_sum("rx_dropped");
		send_packet(t, &send);
		send_packet(t, &ack);
		status_expect("rx_dropped", before + 2);
		EXPECT(t, !peer_receive(&t->peer, &in, 0));
		expect_state(t, states[i]);
		end_qp(t);
	}
}

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

int main(void)
{
	static struct test t;
	union ibv_gid own = gid_of(ADDRESS);

	env_open(&t.e);
	CHECK(!memcmp(&own, &t.e.gid, sizeof(own)));
	t.mr = ibv_reg_mr(t.e.pd, t.e.buf + REGION, REGION,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	t.cq = ibv_create_cq(t.e.ctx, 64, NULL, NULL, 0);
	CHECK(t.mr && t.cq);
	peer_open(&t.peer, PEER, ADDRESS);
	peer_open(&t.stranger, STRANGER, ADDRESS);
	for (size_t i = 0; i < COUNT(rc_cases); i++)
		run_request(&t, IBV_QPT_RC, &rc_cases[i]);
	for (size_t i = 0; i < COUNT(uc_cases); i++)
		run_request(&t, IBV_QPT_UC, &uc_cases[i]);
	for (size_t i = 0; i < COUNT(ud_cases); i++)
		run_request(&t, IBV_QPT_UD, &ud_cases[i]);
	for (size_t i = 0; i < COUNT(answer_cases); i++)
		run_answer(&t, &answer_cases[i]);
	run_states(&t);
	CHECK_EQ(ibv_destroy_cq(t.cq), 0);
	CHECK_EQ(ibv_dereg_mr(t.mr), 0);
	env_close(&t.e);
	close(t.peer.fd);
	close(t.stranger.fd);
	return 0;
}
