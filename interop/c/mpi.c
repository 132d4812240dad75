/*
 * A small MPI program: every rank checks every byte that the others send. Point to point in several
 * sizes, by both protocols (eager and rendezvous), a collective, and one-sided operations.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES = 5, ROUNDS = 8, LARGEST = 4 << 20 };
static const int sizes[SIZES] = { 1, 1000, 10000, 300000, LARGEST };

static void check(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "failed: %s\n", what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

static unsigned char pattern(int rank, int round, int size, int at)
{
	return (unsigned char)(at * 31 + at / 4099 + rank * 17 + round * 7 + size);
}

int main(int argc, char **argv)
{
	int rank, ranks;
	long long received = 0;
	check(!MPI_Init(&argc, &argv), "MPI_Init");
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	check(ranks >= 2, "two ranks");
	int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	unsigned char *out = malloc(LARGEST), *in = malloc(LARGEST);
	for (int s = 0; s < SIZES; s++) {
		for (int round = 0; round < ROUNDS; round++) {
			int size = sizes[s];
			MPI_Request requests[2];
			for (int at = 0; at < size; at++)
				out[at] = pattern(rank, round, size, at);
			memset(in, 0, LARGEST);
			MPI_Irecv(in, size, MPI_BYTE, previous, s, MPI_COMM_WORLD, &requests[0]);
			MPI_Isend(out, size, MPI_BYTE, next, s, MPI_COMM_WORLD, &requests[1]);
			MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
			for (int at = 0; at < size; at++)
				check(in[at] == pattern(previous, round, size, at), "the bytes that were sent");
			received += size;
		}
	}
	long long sum = 0, wanted = 0;
	MPI_Allreduce(&received, &sum, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int s = 0; s < SIZES; s++)
		wanted += (long long)sizes[s] * ROUNDS * ranks;
	check(sum == wanted, "the sum over all ranks");

	long long *shared;
	MPI_Win window;
	MPI_Win_allocate(2 * sizeof *shared, sizeof *shared, MPI_INFO_NULL, MPI_COMM_WORLD, &shared, &window);
	shared[0] = shared[1] = 0;
	MPI_Win_fence(0, window);
	long long value = 1000 + rank, one = 1;
	MPI_Put(&value, 1, MPI_LONG_LONG, next, 0, 1, MPI_LONG_LONG, window);
	MPI_Accumulate(&one, 1, MPI_LONG_LONG, 0, 1, 1, MPI_LONG_LONG, MPI_SUM, window);
	MPI_Win_fence(0, window);
	check(shared[0] == 1000 + previous, "what the neighbour put");
	check(rank != 0 || shared[1] == ranks, "what all accumulated");
	MPI_Win_free(&window);
	printf("rank %d of %d received %lld bytes, all right\n", rank, ranks, received);
	free(out);
	free(in);
	MPI_Finalize();
	return 0;
}
