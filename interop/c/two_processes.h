/* A program that is two processes: one owns memory, the other opens it. */
#ifndef TWO_PROCESSES_H
#define TWO_PROCESSES_H

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include "check.h"

static inline void put(int fd, const void *what, size_t len)
{
	CHECK(write(fd, what, len) == (ssize_t)len);
}

static inline void get(int fd, void *what, size_t len)
{
	CHECK(read(fd, what, len) == (ssize_t)len);
}

/* Runs `opens` here, and `owns`, which never returns, in a new process. They have the two ends of a
 * socket that preserves message boundaries. */
static inline int two_processes(int argc, char **argv, void (*owns)(int sock), void (*opens)(pid_t owner, int sock))
{
	int pair[2];
	pid_t owner;

	if (argc > 1)
		owns(0);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	owner = fork();
	CHECK(owner >= 0);
	if (owner == 0) {
		dup2(pair[1], 0);
		close(pair[0]);
		execl("/proc/self/exe", argv[0], "owns", NULL);
		_exit(1);
	}
	close(pair[1]);
	opens(owner, pair[0]);
	printf("ok\n");
	return 0;
}

#endif
