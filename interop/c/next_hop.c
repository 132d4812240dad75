/* Connects a QP to each of the addresses, and makes an address handle for it: prints the kernel's
 * errors about the next hop. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void must(int good, const char *what)
{
	if (good)
		return;
	perror(what);
	exit(1);
}

/* The index of an address of this host of the same family. */
static uint8_t source(struct ibv_context *context, const union ibv_gid *to)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	union ibv_gid gid;

	for (int index = 0; !ibv_query_gid(context, 1, index, &gid); index++)
		if (!memcmp(gid.raw, mapped, 12) == !memcmp(to->raw, mapped, 12))
			return (uint8_t)index;
	return 0;
}

static const char *connect_to(enum ibv_qp_type type, const struct ibv_ah_attr *ah)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = { .max_send_wr = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, answer;

	must(qp && !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "a QP");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = 2;
	attr.ah_attr = *ah;
	if (type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	errno = 0;
	answer = ibv_modify_qp(qp, &attr, mask);
	must(answer == errno, "errno is the answer");
	must(!ibv_destroy_qp(qp), "destroy");
	return strerrorname_np(answer) ? strerrorname_np(answer) : "?";
}

int main(int argc, char **argv)
{
	struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);

	must(context && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 1, NULL, NULL, 0)), "a device");
	for (int i = 1; i < argc; i++) {
		struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };
		struct ibv_ah *handle;
		uint8_t *raw = ah.grh.dgid.raw;

		if (inet_pton(AF_INET, argv[i], raw + 12) == 1)
			raw[10] = raw[11] = 0xff;
		else
			must(inet_pton(AF_INET6, argv[i], raw) == 1, argv[i]);
		ah.grh.sgid_index = source(context, &ah.grh.dgid);
		printf("%s: rc %s", argv[i], connect_to(IBV_QPT_RC, &ah));
		printf(" uc %s", connect_to(IBV_QPT_UC, &ah));
		errno = 0;
		handle = ibv_create_ah(pd, &ah);
		printf(" ah %s.\n", handle ? "0" : strerrorname_np(errno));
		must(!handle || !ibv_destroy_ah(handle), "destroy");
	}
	return 0;
}
