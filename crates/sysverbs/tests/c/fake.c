/* A libibverbs of one device, for the rules of what a library may refuse and where it may wait. It
   aborts where a real one would wait without end, and in functions that the test does not use. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#undef ibv_reg_mr

/* The NIC uses memory of this length for ever. */
#define STAYS_BUSY 1

struct channel {
	struct ibv_comp_channel channel; /* first, so that both have one address */
	struct queue *queue;
};

struct queue {
	struct ibv_cq cq;
	unsigned int taken;
};

__attribute__((visibility("hidden"))) void absent(void)
{
	fprintf(stderr, "the test called a function that the library does not have\n");
	abort();
}

#define ABSENT(name) __asm__(".globl " #name "\n" #name " = absent")

ABSENT(ibv_get_device_guid);
ABSENT(ibv_query_device);
ABSENT(ibv_query_port);
ABSENT(ibv_query_gid);
ABSENT(ibv_get_async_event);
ABSENT(ibv_ack_async_event);
ABSENT(ibv_create_srq);
ABSENT(ibv_modify_srq);
ABSENT(ibv_destroy_srq);
ABSENT(ibv_create_qp);
ABSENT(ibv_modify_qp);
ABSENT(ibv_query_qp);
ABSENT(ibv_destroy_qp);
ABSENT(ibv_create_ah);
ABSENT(ibv_destroy_ah);
ABSENT(ibv_attach_mcast);
ABSENT(ibv_detach_mcast);

static struct ibv_device device = { .name = "fake0" };

struct ibv_device **ibv_get_device_list(int *count)
{
	static struct ibv_device *list[] = { &device, NULL };

	*count = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
}

/* There is an event as soon as one is asked for. */
static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return eventfd_write(cq->channel->fd, 1);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *context = calloc(1, sizeof(*context));

	context->device = device;
	context->async_fd = eventfd(0, EFD_CLOEXEC);
	context->ops.req_notify_cq = req_notify_cq;
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	close(context->async_fd);
	free(context);
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	if (mr->length == STAYS_BUSY)
		return EBUSY;
	free(mr);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct channel *made = calloc(1, sizeof(*made));

	made->channel.context = context;
	made->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	return &made->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cookie,
			     struct ibv_comp_channel *channel, int vector)
{
	struct queue *queue = calloc(1, sizeof(*queue));

	queue->cq.context = context;
	queue->cq.channel = channel;
	queue->cq.cq_context = cookie;
	((struct channel *)channel)->queue = queue;
	return &queue->cq;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cookie)
{
	struct queue *queue = ((struct channel *)channel)->queue;
	eventfd_t one;

	if (eventfd_read(channel->fd, &one) != 0)
		return -1;
	queue->taken++;
	*cq = &queue->cq;
	*cookie = queue->cq.cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	cq->comp_events_completed += count;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct queue *queue = (struct queue *)cq;

	if (queue->taken != cq->comp_events_completed) {
		fprintf(stderr, "ibv_destroy_cq would wait for ever: of %u events, %u are acknowledged\n",
			queue->taken, cq->comp_events_completed);
		abort();
	}
	free(queue);
	return 0;
}
