/* A program that takes the library's descriptors away, has files of its own at their numbers, and
 * checks whether these were touched. How:
 *
 *   closed    it closes everything from 3 on, as daemons do, and opens files until all the
 *             numbers are taken again
 *   files     it puts a file in the place of each (dup2)
 *   sockets   it puts a connected socket in the place of each
 *   ended     it puts a socket whose other end is closed in the place of each
 *   kinds     it puts what has no inode of its own in the place of each: eventfds, timers */
#ifndef THEFT_H
#define THEFT_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define MOST 1024
#define WORDS "the program's own words"

static char before[MOST], ours[MOST];
/* What the program has in place of each: the other end, if it is a socket, and the identity of the
 * file. */
static int other[MOST];
static struct stat now_is[MOST];

static int theft_fail(const char *what)
{
	perror(what);
	return -1;
}

/* Which numbers are open. */
static void list(char *open)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	memset(open, 0, MOST);
	while (dir && (entry = readdir(dir))) {
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] != '.' && fd != dirfd(dir) && fd < MOST)
			open[fd] = 1;
	}
	if (dir)
		closedir(dir);
}

static int file(void)
{
	int fd = memfd_create("of the program", 0);

	if (fd < 0 || write(fd, WORDS, sizeof(WORDS)) != sizeof(WORDS))
		return theft_fail("a file");
	return fd;
}

static int put(int fd, const char *how, int turn)
{
	int pair[2], mine;

	other[fd] = -1;
	if (!strcmp(how, "files")) {
		mine = file();
	} else if (!strcmp(how, "ended")) {
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
			return theft_fail("socketpair");
		mine = pair[0];
		close(pair[1]);
	} else if (!strcmp(how, "sockets")) {
		if (socketpair(AF_UNIX, turn % 2 ? SOCK_STREAM : SOCK_SEQPACKET, 0, pair))
			return theft_fail("socketpair");
		mine = pair[0];
		other[fd] = fcntl(pair[1], F_DUPFD, 3);
		close(pair[1]);
		/* What the library must not take. */
		if (send(other[fd], WORDS, sizeof(WORDS), 0) < 0)
			return theft_fail("send");
	} else {
		mine = turn % 2 ? eventfd(0, 0) : timerfd_create(CLOCK_MONOTONIC, 0);
	}
	if (mine < 0 || dup2(mine, fd) != fd)
		return theft_fail("dup2");
	if (mine != fd)
		close(mine);
	return 0;
}

static int steal(const char *how)
{
	int fd, highest = 0, turn = 0;

	for (fd = 3; fd < MOST; fd++)
		if (ours[fd])
			highest = fd;
	if (!strcmp(how, "closed")) {
		if (syscall(SYS_close_range, 3, ~0u, 0))
			return theft_fail("close_range");
		do {
			fd = file();
			if (fd < 0)
				return -1;
			ours[fd] = 1;
			other[fd] = -1;
		} while (fd < highest);
	} else {
		for (fd = 3; fd <= highest; fd++)
			if (ours[fd] && put(fd, how, turn++))
				return -1;
	}
	for (fd = 3; fd < MOST; fd++)
		if (ours[fd] && fstat(fd, &now_is[fd]))
			return theft_fail("fstat");
	return 0;
}

static int untouched(void)
{
	char words[2 * sizeof(WORDS)];
	int fd, bad = 0;

	for (fd = 3; fd < MOST; fd++) {
		struct stat is;

		if (!ours[fd])
			continue;
		if (fstat(fd, &is) || is.st_ino != now_is[fd].st_ino || is.st_dev != now_is[fd].st_dev) {
			fprintf(stderr, "%d was closed\n", fd);
			bad = -1;
		} else if (S_ISREG(is.st_mode) &&
			   (is.st_size != sizeof(WORDS) || lseek(fd, 0, SEEK_CUR) != sizeof(WORDS) ||
			    pread(fd, words, sizeof(words), 0) != sizeof(WORDS) || strcmp(words, WORDS))) {
			fprintf(stderr, "%d was read or written to\n", fd);
			bad = -1;
		} else if (other[fd] >= 0 && recv(fd, words, sizeof(words), MSG_DONTWAIT) != sizeof(WORDS)) {
			fprintf(stderr, "%d had a message taken\n", fd);
			bad = -1;
		} else if (other[fd] >= 0 && (recv(other[fd], words, sizeof(words), MSG_DONTWAIT) != -1 || errno != EAGAIN)) {
			fprintf(stderr, "%d had a message sent, or was shut down\n", fd);
			bad = -1;
		}
	}
	return bad;
}

#endif
