/* A NIC with 300 ports: how many there are, which of them a program reaches, and what lies beyond.
 * It is compiled with the system's header and knows nothing of the library below it.
 *
 * ports NIC: its name does not matter. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>

#include "check.h"

#define PORTS 300u
#define REACHED 255u

static struct ibv_context *context;

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static void queues(void)
{
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = REACHED };
	struct ibv_ah_attr to = { .is_global = 1, .port_num = REACHED };
	struct ibv_qp_init_attr init;
	struct ibv_qp *qp;
	struct ibv_ah *ah;

	CHECK(pd && cq);
	qp = create(pd, cq);
	attr.port_num = 0;
	CHECK(ibv_modify_qp(qp, &attr, mask) == EINVAL);
	attr.port_num = REACHED;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_PORT, &init) == 0 && attr.port_num == REACHED);
	CHECK(ibv_query_gid(context, REACHED, 0, &to.grh.dgid) == 0);
	ah = ibv_create_ah(pd, &to);
	CHECK(ah && ibv_destroy_ah(ah) == 0);
	to.port_num = 0;
	CHECK_ERRNO(!ibv_create_ah(pd, &to), EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device_attr_ex all;
	struct ibv_device_attr old;
	struct ibv_gid_entry entry, *table;
	union ibv_gid first, gid;
	ssize_t rows;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	CHECK(ibv_query_device_ex(context, NULL, &all) == 0);
	CHECK(all.phys_port_cnt_ex == PORTS && all.orig_attr.phys_port_cnt == REACHED);
	CHECK(ibv_query_device(context, &old) == 0 && old.phys_port_cnt == REACHED);

	CHECK(ibv_query_gid(context, 1, 0, &first) == 0);
	for (unsigned port = 1; port <= REACHED; port++) {
		struct ibv_port_attr attr;
		uint16_t pkey;

		CHECK(ibv_query_port(context, port, &attr) == 0 && attr.state == IBV_PORT_ACTIVE);
		CHECK(ibv_query_gid(context, port, 0, &gid) == 0);
		CHECK(memcmp(&gid, &first, sizeof(gid)) == 0);
		CHECK(ibv_query_pkey(context, port, 0, &pkey) == 0);
	}
	/* This call takes a port of 32 bits. */
	CHECK(ibv_query_gid_ex(context, PORTS, 0, &entry, 0) == 0 && entry.port_num == PORTS);
	CHECK(ibv_query_gid_ex(context, PORTS + 1, 0, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_ex(context, 0, 0, &entry, 0) == EINVAL);
	{
		struct ibv_port_attr attr;

		CHECK(ibv_query_port(context, 0, &attr) == EINVAL);
	}
	CHECK_ERRNO(ibv_query_gid(context, 0, 0, &gid) == -1, EINVAL);

	/* The table has the GIDs of every port, or is refused. */
	table = calloc(PORTS * 64, sizeof(*table));
	CHECK(table);
	rows = ibv_query_gid_table(context, table, PORTS * 64, 0);
	CHECK(rows > 0 && rows % PORTS == 0 && table[rows - 1].port_num == PORTS);
	CHECK(ibv_query_gid_table(context, table, rows - 1, 0) == -EINVAL);
	free(table);

	queues();
	CHECK(ibv_close_device(context) == 0);
	ibv_free_device_list(list);
	puts("every check passed");
	return 0;
}
