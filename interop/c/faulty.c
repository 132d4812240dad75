/* Repeats one operation within the process and reports what happens: a wrong status, wrong bytes,
 * asynchronous events, the time it took. `faulty OPERATION COUNT [PAUSE_MS]`. `apart` is a WRITE to
 * a separate region, the second one. */
#include "rc_loopback.h"
#include <fcntl.h>
#include <poll.h>

static void events(struct loop *l)
{
	struct ibv_async_event event;

	while (!ibv_get_async_event(l->ctx, &event)) {
		printf("event %s\n", ibv_event_type_str(event.event_type));
		if (event.event_type == IBV_EVENT_PORT_ERR || event.event_type == IBV_EVENT_PORT_ACTIVE) {
			struct ibv_port_attr port;

			if (!ibv_query_port(l->ctx, 1, &port))
				printf("port %s\n", ibv_port_state_str(port.state));
		}
		ibv_ack_async_event(&event);
	}
}

static int post(struct loop *l, const char *operation, unsigned char *to, const struct ibv_mr *target)
{
	struct ibv_sge sge = { .addr = (uintptr_t)l->buf, .length = 4096, .lkey = l->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)to, .rkey = target->rkey } }, *bad;

	if (!strcmp(operation, "send")) {
		struct ibv_sge into = { .addr = (uintptr_t)to, .length = 4096, .lkey = l->mr->lkey };
		struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = &into, .num_sge = 1 }, *bad_recv;

		errno = ibv_post_recv(l->qp[1], &recv, &bad_recv);
		if (errno)
			return loop_fail("post_recv");
		wr.opcode = IBV_WR_SEND;
	} else if (!strcmp(operation, "read")) {
		wr.opcode = IBV_WR_RDMA_READ;
	} else {
		wr.opcode = IBV_WR_RDMA_WRITE;
	}
	errno = ibv_post_send(l->qp[0], &wr, &bad);
	return errno ? loop_fail("post_send") : 0;
}

/* One operation and its completions, including that of the receive. Returns the first bad status,
 * or -1. */
static int complete(struct loop *l, int completions)
{
	struct timespec now, end;
	struct ibv_wc wc;
	int bad = 0;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += 10;
	while (completions > 0) {
		int n = ibv_poll_cq(l->cq, 1, &wc);

		if (n < 0)
			return loop_fail("poll_cq");
		if (n && wc.status) {
			printf("status %d %s, wr_id %d\n", wc.status, ibv_wc_status_str(wc.status), (int)wc.wr_id);
			bad = bad ? bad : (int)wc.status;
		}
		completions -= n;
		events(l);
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec > end.tv_sec) {
			puts("nothing more came");
			return -1;
		}
	}
	return bad;
}

int main(int argc, char **argv)
{
	const char *operation = argc > 1 ? argv[1] : "write";
	int count = argc > 2 ? atoi(argv[2]) : 1, pause = argc > 3 ? atoi(argv[3]) : 0;
	int wrong = 0, failed = 0, done = 0;
	struct timespec began, ended;
	struct ibv_mr *target, *apart = NULL;
	struct loop l;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (loop_open(&l))
		return 1;
	if (!strcmp(operation, "paged")) {
		ibv_dereg_mr(l.mr);
		l.mr = ibv_reg_mr(l.pd, l.buf, 2 * LOOP_SIZE,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND);
		if (!l.mr)
			return 1;
	}
	if (!strcmp(operation, "apart")) {
		apart = ibv_reg_mr(l.pd, l.buf + LOOP_SIZE, LOOP_SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		if (!apart)
			return 1;
	}
	target = apart ? apart : l.mr;
	fcntl(l.ctx->async_fd, F_SETFL, fcntl(l.ctx->async_fd, F_GETFL) | O_NONBLOCK);
	clock_gettime(CLOCK_MONOTONIC, &began);
	for (; done < count && !failed; done++) {
		unsigned char *to = l.buf + LOOP_SIZE;
		int is_read = !strcmp(operation, "read");

		memset(l.buf, is_read ? 0 : done + 1, 4096);
		memset(to, is_read ? done + 1 : 0, 4096);
		if (post(&l, operation, to, target))
			return 1;
		failed = complete(&l, strcmp(operation, "send") ? 1 : 2);
		wrong += !failed && memcmp(l.buf, to, 4096);
		if (pause)
			usleep(pause * 1000);
	}
	clock_gettime(CLOCK_MONOTONIC, &ended);
	events(&l);
	printf("%d done, %d with wrong bytes, %ld ms\n", done, wrong,
	       (ended.tv_sec - began.tv_sec) * 1000 + (ended.tv_nsec - began.tv_nsec) / 1000000);
	if (apart && ibv_dereg_mr(apart))
		return 1;
	return loop_close(&l) ? 1 : failed ? 2 : 0;
}
