/* SPDX-License-Identifier: BSD-2-Clause */
/* Devices: listing and querying them, their ports, GIDs and P_Keys. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define PKEY_DEFAULT 0xffff

/* enum ibv_gid_type_sysfs of the private ABI */
#define GID_TYPE_SYSFS_IB_ROCE_V1 0
#define GID_TYPE_SYSFS_ROCE_V2 1

static pthread_mutex_t devices_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct device *devices;

/*
 * The device of that description, made if need be. Devices are kept: programs compare their
 * addresses, and use them after freeing the list.
 */
static struct device *device_get(const struct vernic_device_info *info)
{
	struct device *dev;

	for (dev = devices; dev; dev = dev->next) {
		if (dev->guid == info->node_guid &&
		    !strncmp(dev->ibv.name, info->name, sizeof(dev->ibv.name)))
			goto out;
	}
	dev = calloc(1, sizeof(*dev));
	if (!dev)
		return NULL;
	dev->guid = info->node_guid;
	dev->ibv.node_type = IBV_NODE_CA;
	dev->ibv.transport_type = IBV_TRANSPORT_IB;
	snprintf(dev->ibv.name, sizeof(dev->ibv.name), "%.*s", (int)sizeof(info->name) - 1,
		 info->name);
	snprintf(dev->ibv.dev_name, sizeof(dev->ibv.dev_name), "uverbs%u", info->index);
	snprintf(dev->ibv.dev_path, sizeof(dev->ibv.dev_path),
		 "/sys/class/infiniband_verbs/uverbs%u", info->index);
	snprintf(dev->ibv.ibdev_path, sizeof(dev->ibv.ibdev_path), "/sys/class/infiniband/%s",
		 dev->ibv.name);
	dev->next = devices;
	devices = dev;
out:
	dev->index = info->index;
	return dev;
}

struct ibv_device *device_of(const struct vernic_device_info *info)
{
	struct device *dev;

	pthread_mutex_lock(&devices_mutex);
	dev = device_get(info);
	pthread_mutex_unlock(&devices_mutex);
	return dev ? &dev->ibv : NULL;
}

struct ibv_device **ibv_get_device_list(int *num_devices)
{
	struct vernic_request req = {.command = VERNIC_CMD_LIST_DEVICES};
	struct vernic_reply reply;
	struct ibv_device **list, **more;
	struct ibv_device *dev;
	int count = 0, error = 0, ctl;

	if (num_devices)
		*num_devices = 0;
	list = calloc(1, sizeof(*list));
	if (!list)
		return NULL;
	ctl = control_connect();
	if (ctl < 0) {
		if (errno == ENOENT && !secure_getenv(VERNIC_SOCKET_ENV))
			return list;
		error = errno;
		goto err;
	}
	for (;; count++) {
		req.list_devices.index = count;
		error = control_exchange(ctl, &req, -1, &reply, NULL, 0);
		if (error == ENODEV)
			break;
		if (error)
			goto err;
		more = realloc(list, (count + 2) * sizeof(*list));
		if (!more) {
			error = ENOMEM;
			goto err;
		}
		list = more;
		dev = device_of(&reply.list_devices);
		if (!dev) {
			error = ENOMEM;
			goto err;
		}
		list[count] = dev;
		list[count + 1] = NULL;
	}
	close(ctl);
	if (num_devices)
		*num_devices = count;
	return list;

err:
	if (ctl >= 0)
		close(ctl);
	free(list);
	errno = error;
	return NULL;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

int ibv_get_device_index(struct ibv_device *device)
{
	return (int)((struct device *)device)->index;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	return ((struct device *)device)->guid;
}

/* Asks the daemon. @return 0 or a positive errno */
static int query_device(struct ibv_context *context, struct vernic_reply *reply)
{
	struct vernic_request req = {.command = VERNIC_CMD_QUERY_DEVICE};

	return control_call(to_context(context), &req, reply, NULL, 0);
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	struct vernic_reply reply;
	int error = query_device(context, &reply);

	if (!error)
		*attr = reply.query_device.attr;
	return error;
}

/* On-demand paging: the daemon reaches memory as a process does, so everything can be. */
static void fill_odp_caps(struct ibv_device_attr_ex *attr)
{
	const bool atomics = attr->orig_attr.atomic_cap != IBV_ATOMIC_NONE;
	const uint32_t datagram = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV |
				  IBV_ODP_SUPPORT_SRQ_RECV;
	const uint32_t all = datagram | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
			     (atomics ? IBV_ODP_SUPPORT_ATOMIC : 0);

	attr->odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
	attr->odp_caps.per_transport_caps.rc_odp_caps = all;
	attr->odp_caps.per_transport_caps.uc_odp_caps =
		IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE;
	attr->odp_caps.per_transport_caps.ud_odp_caps = datagram;
	if (attr->orig_attr.device_cap_flags & IBV_DEVICE_XRC)
		attr->xrc_odp_caps = all;
}

/* Rate limits of QPs: of all that have a requester. */
static void fill_pacing_caps(struct ibv_packet_pacing_caps *caps)
{
	caps->qp_rate_limit_min = 1;
	caps->qp_rate_limit_max = VERNIC_MAX_RATE;
	caps->supported_qpts = 1u << IBV_QPT_RC | 1u << IBV_QPT_UC | 1u << IBV_QPT_UD |
			       1u << IBV_QPT_XRC_SEND;
}

int device_query_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
		    struct ibv_device_attr_ex *attr, size_t size)
{
	struct ibv_device_attr_ex all = {0};
	struct vernic_reply reply;
	int error;

	if (input && input->comp_mask)
		return EINVAL;
	if (size < sizeof(all.orig_attr))
		return EINVAL;
	error = query_device(context, &reply);
	if (error)
		return error;
	all.orig_attr = reply.query_device.attr;
	/* No QP type is spread over them yet. */
	all.rss_caps.max_rwq_indirection_tables = VERNIC_MAX_CONTEXT_WQ;
	all.rss_caps.max_rwq_indirection_table_size = 1u << VERNIC_MAX_RWQ_LOG;
	all.max_wq_type_rq = VERNIC_MAX_CONTEXT_WQ;
	all.cq_mod_caps.max_cq_count = UINT16_MAX;
	all.cq_mod_caps.max_cq_period = UINT16_MAX;
	/* CQE times are ns of CLOCK_MONOTONIC. */
	all.completion_timestamp_mask = UINT64_MAX;
	all.hca_core_clock = 1000000; /* kHz */
	all.device_cap_flags_ex = reply.query_device.cap_flags;
	all.phys_port_cnt_ex = all.orig_attr.phys_port_cnt;
	all.max_dm_size = reply.query_device.max_dm;
	if (reply.query_device.odp)
		fill_odp_caps(&all);
	if (reply.query_device.pacing)
		fill_pacing_caps(&all.packet_pacing_caps);
	memset(attr, 0, size);
	memcpy(attr, &all, size < sizeof(all) ? size : sizeof(all));
	return 0;
}

int device_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	struct timespec ts;

	/* What we do not know was not queried. */
	values->comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
	if (values->comp_mask & IBV_VALUES_MASK_RAW_CLOCK) {
		/* A count of hca_core_clock ticks, carried in tv_nsec. */
		clock_gettime(CLOCK_MONOTONIC, &ts);
		values->raw_clock.tv_sec = 0;
		values->raw_clock.tv_nsec = ts.tv_sec * 1000000000L + ts.tv_nsec;
	}
	return 0;
}

int device_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr,
		      size_t size)
{
	struct vernic_request req = {.command = VERNIC_CMD_QUERY_PORT};
	struct vernic_reply reply;
	int error;

	if (port_num != 1)
		return EINVAL;
	error = control_call(to_context(context), &req, &reply, NULL, 0);
	if (error)
		return error;
	memset(attr, 0, size);
	memcpy(attr, &reply.query_port,
	       size < sizeof(reply.query_port) ? size : sizeof(reply.query_port));
	return 0;
}

/* What programs built before port_cap_flags2 was added call: their struct ends there. */
int ibv_query_port(struct ibv_context *context, uint8_t port_num,
		   struct _compat_ibv_port_attr *port_attr)
{
	return device_query_port(context, port_num, (struct ibv_port_attr *)port_attr,
				 offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* ---- GIDs ---------------------------------------------------------------------------------- */

/* Asks for an entry. @used: out, unless NULL: as in struct vernic_reply */
static int query_gid(struct context *ctx, uint32_t index, struct ibv_gid_entry *entry,
		     uint32_t *used)
{
	struct vernic_request req = {.command = VERNIC_CMD_QUERY_GID};
	struct vernic_reply reply;
	int error;

	req.query_gid.index = index;
	error = control_call(ctx, &req, &reply, NULL, 0);
	if (error)
		return error;
	memcpy(entry->gid.raw, reply.query_gid.gid, sizeof(entry->gid.raw));
	entry->gid_index = index;
	entry->port_num = 1;
	entry->gid_type = reply.query_gid.type;
	entry->ndev_ifindex = reply.query_gid.ifindex;
	if (used)
		*used = reply.query_gid.used;
	return 0;
}

int device_query_gid(struct context *ctx, uint32_t port, uint32_t index,
		     struct ibv_gid_entry *entry)
{
	if (port != 1 || index >= ctx->gid_count)
		return EINVAL;
	return query_gid(ctx, index, entry, NULL);
}

int device_read_gids(struct context *ctx)
{
	uint32_t generation = vernic_load_acquire(&ctx->device->gid_generation);
	union ibv_gid table[VERNIC_GID_MAX] = {0};
	struct ibv_gid_entry entry;
	uint32_t used = 1;
	int error;

	for (uint32_t i = 0; i < ctx->gid_count && i < used; i++) {
		error = query_gid(ctx, i, &entry, &used);
		if (error)
			return error;
		table[i] = entry.gid;
	}
	spin_lock(&ctx->gid_lock);
	memcpy(ctx->gid, table, sizeof(table));
	vernic_store_release(&ctx->gid_generation, generation);
	spin_unlock(&ctx->gid_lock);
	return 0;
}

/* @return whether a GID table entry holds nothing */
static bool gid_empty(const union ibv_gid *gid)
{
	static const union ibv_gid zero;

	return !memcmp(gid, &zero, sizeof(zero));
}

/* Reads the table again if it has changed. @return 0 or a positive errno */
static int refresh_gids(struct context *ctx)
{
	if (vernic_load_relaxed(&ctx->device->failed))
		return EIO;
	if (vernic_load_acquire(&ctx->device->gid_generation) ==
	    vernic_load_acquire(&ctx->gid_generation))
		return 0;
	return device_read_gids(ctx);
}

int device_get_gid(struct context *ctx, uint32_t index, union ibv_gid *gid)
{
	int error = refresh_gids(ctx);

	if (error)
		return error;
	if (index >= ctx->gid_count)
		return EINVAL;
	spin_lock(&ctx->gid_lock);
	*gid = ctx->gid[index];
	spin_unlock(&ctx->gid_lock);
	return gid_empty(gid) ? EINVAL : 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid)
{
	struct ibv_gid_entry entry;
	int error;

	error = index < 0 ? EINVAL : device_query_gid(to_context(context), port_num, index, &entry);
	if (error) {
		errno = error;
		return -1;
	}
	*gid = entry.gid;
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
		      struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
	struct ibv_gid_entry full = {0};
	int error;

	if (flags)
		return EOPNOTSUPP;
	error = device_query_gid(to_context(context), port_num, gid_index, &full);
	if (error)
		return error;
	if (gid_empty(&full.gid))
		return ENODATA;
	memset(entry, 0, entry_size);
	memcpy(entry, &full, entry_size < sizeof(full) ? entry_size : sizeof(full));
	return 0;
}

/* @return entries written, or a negative errno: -EINVAL where there are more than max_entries */
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
			     size_t max_entries, uint32_t flags, size_t entry_size)
{
	struct context *ctx = to_context(context);
	struct ibv_gid_entry full = {0};
	uint32_t used = 1;
	size_t count = 0;
	char *to;
	int error;

	if (flags)
		return -EOPNOTSUPP;
	for (uint32_t i = 0; i < ctx->gid_count && i < used; i++) {
		error = query_gid(ctx, i, &full, &used);
		if (error)
			return -error;
		if (gid_empty(&full.gid))
			continue;
		if (count == max_entries)
			return -EINVAL;
		to = (char *)entries + count++ * entry_size;
		memset(to, 0, entry_size);
		memcpy(to, &full, entry_size < sizeof(full) ? entry_size : sizeof(full));
	}
	return (ssize_t)count;
}

/* Of the private ABI, which ibv_devinfo and others use all the same. @return 0, or -1 and errno */
int ibv_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index,
		       unsigned int *type);
int ibv_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index,
		       unsigned int *type)
{
	struct ibv_gid_entry entry;
	int error;

	error = device_query_gid(to_context(context), port_num, index, &entry);
	if (error) {
		errno = error;
		return -1;
	}
	*type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? GID_TYPE_SYSFS_ROCE_V2
						       : GID_TYPE_SYSFS_IB_ROCE_V1;
	return 0;
}

/* ---- P_Keys -------------------------------------------------------------------------------- */

int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey)
{
	/* RoCE has the default P_Key and no other (IBTA A17.7.1). */
	if (port_num != 1 || index < 0 || index >= to_context(context)->port.pkey_tbl_len) {
		errno = EINVAL;
		return -1;
	}
	*pkey = index == 0 ? htons(PKEY_DEFAULT) : 0;
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *context, uint8_t port_num, __be16 pkey)
{
	__be16 entry;

	for (int i = 0; ibv_query_pkey(context, port_num, i, &entry) == 0; i++) {
		if (entry == pkey)
			return i;
	}
	return -1;
}
