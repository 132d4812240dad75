/* A process fills most of a GPU and is killed: another process that has the GPU open gets the
 * memory. */
#include "cuda_api.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define GIB ((size_t)1 << 30)

static void fills(void)
{
	cu_ptr at;

	cuda_start();
	for (int i = 0; i < 6; i++)
		CU(cuMemAlloc_v2(&at, GIB));
	CHECK(write(1, "f", 1) == 1);
	pause();
}

int main(int argc, char **argv)
{
	size_t free_bytes, total;
	int up[2], status;
	pid_t child;
	char token;
	cu_ptr at;

	if (argc > 1) {
		fills();
		return 1;
	}
	CHECK(pipe(up) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		dup2(up[1], 1);
		execl("/proc/self/exe", argv[0], "fills", NULL);
		_exit(1);
	}
	close(up[1]);
	CHECK(read(up[0], &token, 1) == 1);
	cuda_start();
	CU(cuMemGetInfo_v2(&free_bytes, &total));
	CHECK(total == 8 * GIB && free_bytes <= 2 * GIB);
	CU_IS(cuMemAlloc_v2(&at, 4 * GIB), CU_OUT_OF_MEMORY);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	CU(cuMemAlloc_v2(&at, 4 * GIB));
	CU(cuMemFree_v2(at));
	CU(cuMemGetInfo_v2(&free_bytes, &total));
	CHECK(free_bytes == total);
	printf("ok\n");
	return 0;
}
