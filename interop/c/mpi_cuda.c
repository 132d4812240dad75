/* An MPI program with buffers in GPU memory: point to point in several sizes, also mixed with host
 * memory, collectives, and one-sided operations. Every rank checks every byte that the others send.
 *
 *   mpi_cuda [TURNS]
 */
#include "cuda_api.h"

#include <mpi.h>

enum { SIZES = 5, ROUNDS = 4, LARGEST = 4 << 20, NUMBERS = 1000, ADDED = 500 };
static const int sizes[SIZES] = { 1, 1000, 10000, 300000, LARGEST };

static unsigned char *host;
static int rank, ranks;

static void check(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "rank %d failed: %s\n", rank, what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

static unsigned char pattern(int of, int round, int size, int at)
{
	return (unsigned char)(at * 31 + at / 4099 + of * 17 + round * 7 + size);
}

static void fill(cu_ptr to, int round, int size)
{
	for (int at = 0; at < size; at++)
		host[at] = pattern(rank, round, size, at);
	CU(cuMemcpyHtoD_v2(to, host, size));
}

static void compare(cu_ptr from, int of, int round, int size, const char *what)
{
	memset(host, 0, size);
	CU(cuMemcpyDtoH_v2(host, from, size));
	for (int at = 0; at < size; at++)
		check(host[at] == pattern(of, round, size, at), what);
}

static cu_ptr device(size_t size)
{
	cu_ptr memory;

	CU(cuMemAlloc_v2(&memory, size));
	CU(cuMemsetD8_v2(memory, 0, size));
	return memory;
}

/* To the next rank: from the GPU to the GPU, from the GPU to the host, and from the host to the
 * GPU. */
static long long messages(int next, int previous)
{
	cu_ptr out = device(LARGEST), in = device(LARGEST);
	unsigned char *plain = malloc(LARGEST);
	MPI_Request requests[2];
	long long received = 0;

	for (int s = 0; s < SIZES; s++) {
		for (int round = 0; round < ROUNDS; round++) {
			int size = sizes[s], from_host = round == 1, to_host = round == 2;

			if (from_host)
				for (int at = 0; at < size; at++)
					plain[at] = pattern(rank, round, size, at);
			else
				fill(out, round, size);
			MPI_Irecv(to_host ? plain : (void *)in, size, MPI_BYTE, previous, s, MPI_COMM_WORLD, &requests[0]);
			MPI_Isend(from_host ? plain : (void *)out, size, MPI_BYTE, next, s, MPI_COMM_WORLD, &requests[1]);
			MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
			if (to_host)
				for (int at = 0; at < size; at++)
					check(plain[at] == pattern(previous, round, size, at), "what the host received");
			else
				compare(in, previous, round, size, "what the GPU received");
			received += size;
		}
	}
	free(plain);
	CU(cuMemFree_v2(out));
	CU(cuMemFree_v2(in));
	return received;
}

static void collectives(void)
{
	cu_ptr out = device(LARGEST), in = device(LARGEST * (size_t)ranks);
	long long numbers[NUMBERS];
	int size = 100000;

	if (rank == 0)
		fill(out, 9, size);
	MPI_Bcast((void *)out, size, MPI_BYTE, 0, MPI_COMM_WORLD);
	compare(out, 0, 9, size, "what was broadcast");

	fill(out, 10, size);
	MPI_Allgather((void *)out, size, MPI_BYTE, (void *)in, size, MPI_BYTE, MPI_COMM_WORLD);
	for (int of = 0; of < ranks; of++)
		compare(in + (size_t)of * size, of, 10, size, "what was gathered");

	MPI_Alltoall((void *)out, size / ranks, MPI_BYTE, (void *)in, size / ranks, MPI_BYTE, MPI_COMM_WORLD);
	for (int of = 0; of < ranks; of++) {
		CU(cuMemcpyDtoH_v2(host, in + (size_t)of * (size / ranks), size / ranks));
		for (int at = 0; at < size / ranks; at++)
			check(host[at] == pattern(of, 10, size, rank * (size / ranks) + at), "what all sent to all");
	}

	for (int at = 0; at < NUMBERS; at++)
		numbers[at] = at + rank;
	CU(cuMemcpyHtoD_v2(out, numbers, sizeof(numbers)));
	MPI_Allreduce((void *)out, (void *)in, NUMBERS, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
	CU(cuMemcpyDtoH_v2(numbers, in, sizeof(numbers)));
	for (int at = 0; at < NUMBERS; at++)
		check(numbers[at] == (long long)at * ranks + ranks * (ranks - 1) / 2, "the sum over all ranks");
	CU(cuMemFree_v2(out));
	CU(cuMemFree_v2(in));
}

/* The operand is in host memory: Open MPI adds on the CPU, and puts the sum back
 * (osc_ucx_comm.c:554). No MPI_Fetch_and_op: UCX has the target's CPU do that, which dereferences
 * the device pointer (amo_sw.c). */
static void accumulate(MPI_Win window, cu_ptr memory, int next, int previous)
{
	long long numbers[NUMBERS];

	for (int at = 0; at < NUMBERS; at++)
		numbers[at] = at + 1000 * rank;
	CU(cuMemcpyHtoD_v2(memory, numbers, sizeof(numbers)));
	MPI_Win_fence(0, window);
	for (int at = 0; at < NUMBERS; at++)
		numbers[at] = 3 * at + rank;
	MPI_Accumulate(numbers, ADDED, MPI_LONG_LONG, next, 0, ADDED, MPI_LONG_LONG, MPI_SUM, window);
	MPI_Win_fence(0, window);
	CU(cuMemcpyDtoH_v2(numbers, memory, sizeof(numbers)));
	for (int at = 0; at < NUMBERS; at++)
		check(numbers[at] == at + 1000 * rank + (at < ADDED ? 3 * at + previous : 0), "what the neighbour added");
}

static void one_sided(int next, int previous)
{
	cu_ptr window_memory = device(2 * LARGEST), out = device(LARGEST);
	int size = 200000;
	MPI_Win window;

	MPI_Win_create((void *)window_memory, 2 * LARGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	fill(out, 20, size);
	MPI_Win_fence(0, window);
	MPI_Put((void *)out, size, MPI_BYTE, next, 0, size, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	compare(window_memory, previous, 20, size, "what the neighbour put");
	fill(window_memory + LARGEST, 21, size);
	MPI_Win_fence(0, window);
	MPI_Get((void *)out, size, MPI_BYTE, next, LARGEST, size, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	compare(out, next, 21, size, "what was got from the neighbour");
	accumulate(window, window_memory, next, previous);
	MPI_Win_free(&window);
	CU(cuMemFree_v2(window_memory));
	CU(cuMemFree_v2(out));
}

int main(int argc, char **argv)
{
	int turns = argc > 1 ? atoi(argv[1]) : 1, next, previous;
	long long received = 0;

	cuda_start();
	CHECK((host = malloc(LARGEST)) != NULL);
	check(!MPI_Init(&argc, &argv), "MPI_Init");
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	check(ranks >= 2, "two ranks");
	next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	for (int turn = 0; turn < turns; turn++) {
		received += messages(next, previous);
		collectives();
		one_sided(next, previous);
	}
	printf("rank %d of %d received %lld bytes, all right\n", rank, ranks, received);
	MPI_Finalize();
	return 0;
}
