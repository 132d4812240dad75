/*
 * Makes and ends connections, one after the other, in one pair of processes: `cm_storm server PORT
 * COUNT` and `cm_storm client PORT COUNT ADDRESS`. Before and after, each side counts its
 * descriptors, its memory and the QPs that it can still make. Each connection carries one message.
 */
#include "rdmacm.h"
#include <dirent.h>
#include <time.h>

/* Connections before the first count, for what a process allocates once. */
#define WARM 100

static struct rdma_event_channel *channel;
static char buffer[64];

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	if (!dir)
		die("/proc/self/fd");
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static long kilobytes(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long size, resident;

	if (!file || fscanf(file, "%ld %ld", &size, &resident) != 2)
		die("/proc/self/statm");
	fclose(file);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* How many QPs there is room for. */
static int room(struct ibv_context *context)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_device_attr device;
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp **qps;
	int count = 0;

	if (!pd || !cq || ibv_query_device(context, &device))
		die("room");
	qps = calloc(device.max_qp + 1, sizeof *qps);
	attr.send_cq = attr.recv_cq = cq;
	while (count <= device.max_qp && (qps[count] = ibv_create_qp(pd, &attr)))
		count++;
	for (int i = 0; i < count; i++)
		if (ibv_destroy_qp(qps[i]))
			die("ibv_destroy_qp");
	free(qps);
	if (ibv_destroy_cq(cq) || ibv_dealloc_pd(pd))
		die("room");
	return count;
}

struct counts {
	int descriptors, qps;
	long kilobytes;
};

static struct counts count(struct ibv_context *context)
{
	struct counts now;

	now.qps = room(context);
	now.descriptors = descriptors();
	now.kilobytes = kilobytes();
	return now;
}

static void compare(const char *who, struct counts before, struct counts after)
{
	printf("%s: descriptors %d -> %d, QPs left %d -> %d, KiB %ld -> %ld\n", who, before.descriptors,
	       after.descriptors, before.qps, after.qps, before.kilobytes, after.kilobytes);
	/* A block of ports, a peer's ring: a few may come and go. */
	answers("descriptors", after.descriptors <= before.descriptors + 8, 1);
	answers("QPs", after.qps, before.qps);
	/* A leak of a KiB per connection would show after 2,000 connections. */
	answers("memory", after.kilobytes <= before.kilobytes + 2000, 1);
}

static void serve(struct rdma_cm_id *listener)
{
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	answers("listener", event->listen_id == listener, 1);
	rdma_ack_cm_event(event);
	make_qp(id);
	mr = rdma_reg_msgs(id, buffer, sizeof buffer);
	if (!mr || rdma_post_recv(id, NULL, buffer, sizeof buffer, mr))
		die("rdma_post_recv");
	if (rdma_accept(id, &param))
		die("rdma_accept");
	answers("ESTABLISHED", expect_event(channel, RDMA_CM_EVENT_ESTABLISHED), 0);
	if (rdma_get_recv_comp(id, &wc) != 1 || wc.status)
		die("no message");
	answers("DISCONNECTED", expect_event(channel, RDMA_CM_EVENT_DISCONNECTED), 0);
	if (rdma_disconnect(id))
		die("rdma_disconnect");
	rdma_dereg_mr(mr);
	rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		die("rdma_destroy_id");
}

static void ask(struct sockaddr_in *to)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id = resolved(channel, to);
	struct ibv_mr *mr;
	struct ibv_wc wc;

	make_qp(id);
	mr = rdma_reg_msgs(id, buffer, sizeof buffer);
	if (!mr)
		die("rdma_reg_msgs");
	if (rdma_connect(id, &param))
		die("rdma_connect");
	answers("ESTABLISHED", expect_event(channel, RDMA_CM_EVENT_ESTABLISHED), 0);
	if (rdma_post_send(id, NULL, buffer, sizeof buffer, mr, IBV_SEND_SIGNALED))
		die("rdma_post_send");
	if (rdma_get_send_comp(id, &wc) != 1 || wc.status)
		die("not sent");
	if (rdma_disconnect(id))
		die("rdma_disconnect");
	answers("DISCONNECTED", expect_event(channel, RDMA_CM_EVENT_DISCONNECTED), 0);
	rdma_dereg_mr(mr);
	rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		die("rdma_destroy_id");
}

int main(int argc, char **argv)
{
	int port = argc > 3 ? atoi(argv[2]) : 0, total = argc > 3 ? atoi(argv[3]) : 0;
	struct rdma_cm_id *listener = NULL;
	struct ibv_context **devices;
	struct sockaddr_in to;
	struct counts before = { 0 };
	struct timespec began, ended;
	int is_server;

	if (!total)
		return 2;
	is_server = argv[1][0] == 's';
	to = address(is_server ? "0.0.0.0" : argv[4], port);
	channel = rdma_create_event_channel();
	devices = rdma_get_devices(NULL);
	if (!channel || !devices || !devices[0])
		die("no device");
	if (is_server) {
		if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, sa(&to)) ||
		    rdma_listen(listener, 0))
			die("rdma_listen");
	}
	for (int i = 0; i < WARM + total; i++) {
		if (i == WARM) {
			before = count(devices[0]);
			clock_gettime(CLOCK_MONOTONIC, &began);
		}
		if (is_server)
			serve(listener);
		else
			ask(&to);
	}
	clock_gettime(CLOCK_MONOTONIC, &ended);
	printf("%s: %.0f connections per second\n", argv[1],
	       total / (ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) / 1e9));
	compare(argv[1], before, count(devices[0]));
	if (listener && rdma_destroy_id(listener))
		die("rdma_destroy_id");
	rdma_free_devices(devices);
	rdma_destroy_event_channel(channel);
	if (!bad)
		puts("ok");
	return bad != 0;
}
