/* Threads open devices, move data, allocate device memory and close the devices, while the main
 * thread forks. argv[1]: how often.
 *
 * No fork may deadlock, each child ends by itself, and every 4th child moves data with a device of
 * its own. */
#include "rc_loopback.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define THREADS 3
#define TOO_LONG 3.0 /* seconds; a fork takes milliseconds */

static volatile int over;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int device_memory(struct loop *l)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	struct ibv_dm *dm = ibv_alloc_dm(l->ctx, &attr);
	struct ibv_mr *mr = dm ? ibv_reg_dm_mr(l->pd, dm, 0, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED) : NULL;

	if (!mr)
		return loop_fail("device memory");
	return ibv_dereg_mr(mr) || ibv_free_dm(dm) ? loop_fail("no more device memory") : 0;
}

static void *opens_and_closes(void *arg)
{
	while (!over) {
		struct loop l;

		if (loop_open(&l) || loop_write(&l, 1) || device_memory(&l) || loop_close(&l))
			exit(1);
	}
	return arg;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 100, i, status;
	pthread_t threads[THREADS];
	double longest = 0;

	alarm(300);
	for (i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, opens_and_closes, NULL))
			return 1;
	for (i = 0; i < rounds; i++) {
		double began = now(), took;
		pid_t child = fork();

		if (child == 0) {
			struct loop own;

			alarm(20);
			_exit(i % 4 == 0 && (loop_open(&own) || loop_write(&own, 2) || loop_close(&own)));
		}
		took = now() - began;
		if (took > longest)
			longest = took;
		if (child < 0 || waitpid(child, &status, 0) != child || status) {
			fprintf(stderr, "round %d: the child ended with wait status %#x\n", i, status);
			return 1;
		}
	}
	over = 1;
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	if (longest > TOO_LONG) {
		fprintf(stderr, "a fork took %.1f seconds\n", longest);
		return 1;
	}
	puts("ok");
	return 0;
}
