/* Calls that wait for events: what signals do to them, and cancellation.
 *
 * Each call waits in a thread of its own. A handler with SA_RESTART leaves it waiting, one without
 * ends it with EINTR, also if it was installed during the wait; a descriptor that does not block
 * ends it with EAGAIN; and a cancelled thread ends, although no event comes. A channel that is
 * destroyed leaves its thread waiting.
 */
#define _GNU_SOURCE /* pthread_tryjoin_np(3) */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct rdma_event_channel *cm_channel;
static volatile sig_atomic_t handled;

static void die(const char *name, const char *what)
{
	fprintf(stderr, "%s: %s\n", name, what);
	exit(1);
}

static void handler(int number)
{
	handled += number != 0;
}

static void install(int flags)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_handler = handler;
	action.sa_flags = flags;
	sigaction(SIGUSR1, &action, NULL);
}

/* The errno of a call that should not succeed. */
static long failed(int answer)
{
	return answer ? errno : 0;
}

static void *wait_for_completion(void *unused)
{
	struct ibv_cq *cq;

	return (void *)failed(ibv_get_cq_event(channel, &cq, &unused));
}

static void *wait_for_async_event(void *unused)
{
	struct ibv_async_event event;

	(void)unused;
	return (void *)failed(ibv_get_async_event(context, &event));
}

static void *wait_for_cm_event(void *unused)
{
	struct rdma_cm_event *event;

	(void)unused;
	return (void *)failed(rdma_get_cm_event(cm_channel, &event));
}

struct call {
	const char *name;
	void *(*wait)(void *);
	int fd;
};

static pthread_t start(const struct call *call)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, call->wait, NULL))
		die(call->name, "pthread_create");
	usleep(50000);
	return thread;
}

static void interrupt(const struct call *call, pthread_t thread)
{
	int before = handled, i;

	if (pthread_kill(thread, SIGUSR1))
		die(call->name, "pthread_kill");
	for (i = 0; handled == before; i++) {
		if (i == 1000)
			die(call->name, "the handler does not run");
		usleep(10000);
	}
}

/* Joins a thread, which ends without an event. */
static void *end_of(const struct call *call, pthread_t thread)
{
	void *answer;
	int i;

	for (i = 0; pthread_tryjoin_np(thread, &answer); i++) {
		if (i == 1000)
			die(call->name, "the wait does not end");
		usleep(10000);
	}
	return answer;
}

static void expect(const struct call *call, const char *why, pthread_t thread, long wanted)
{
	long answer = (long)end_of(call, thread);

	if (answer == wanted)
		return;
	fprintf(stderr, "%s: %s: %s\n", call->name, why, strerror((int)answer));
	exit(1);
}

static void check(const struct call *call)
{
	int flags = fcntl(call->fd, F_GETFL);
	pthread_t thread;
	void *answer;

	install(SA_RESTART);
	thread = start(call);
	interrupt(call, thread);
	usleep(50000);
	if (pthread_tryjoin_np(thread, &answer) != EBUSY)
		die(call->name, "a handler with SA_RESTART ended it");
	if (pthread_cancel(thread) || end_of(call, thread) != PTHREAD_CANCELED)
		die(call->name, "cancelled, and returns");

	thread = start(call);
	install(0);
	interrupt(call, thread);
	expect(call, "a new handler without SA_RESTART", thread, EINTR);

	thread = start(call);
	interrupt(call, thread);
	expect(call, "a handler without SA_RESTART", thread, EINTR);

	fcntl(call->fd, F_SETFL, flags | O_NONBLOCK);
	expect(call, "a descriptor that does not block", start(call), EAGAIN);
	fcntl(call->fd, F_SETFL, flags);
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_cq *cq;
	struct rdma_cm_id *id;
	struct call calls[3];
	pthread_t waits;
	void *answer;
	int i;

	if (!devices || !devices[0] || !(context = ibv_open_device(devices[0])))
		die("open_device", "failed");
	channel = ibv_create_comp_channel(context);
	cq = channel ? ibv_create_cq(context, 1, NULL, channel, 0) : NULL;
	if (!cq || ibv_req_notify_cq(cq, 0))
		die("create_cq", "failed");
	cm_channel = rdma_create_event_channel();
	if (!cm_channel || rdma_create_id(cm_channel, &id, NULL, RDMA_PS_TCP))
		die("rdma_create_id", "failed");
	calls[0] = (struct call){ "ibv_get_cq_event", wait_for_completion, channel->fd };
	calls[1] = (struct call){ "ibv_get_async_event", wait_for_async_event, context->async_fd };
	calls[2] = (struct call){ "rdma_get_cm_event", wait_for_cm_event, cm_channel->fd };
	for (i = 0; i < 3; i++)
		check(&calls[i]);
	/* Some programs end like this. The thread waits until the end of the process. */
	waits = start(&calls[0]);
	if (rdma_destroy_id(id) || ibv_destroy_cq(cq) || ibv_destroy_comp_channel(channel))
		die("the end", "something is still in use");
	usleep(50000);
	if (pthread_tryjoin_np(waits, &answer) != EBUSY)
		die("the end", "a wait has ended with its channel");
	rdma_destroy_event_channel(cm_channel);
	ibv_free_device_list(devices);
	if (ibv_close_device(context))
		die("close_device", "failed");
	printf("all waits ended as they should\n");
	return 0;
}
