/* Runs a program that may only make sockets of these families, like systemd's
 * RestrictAddressFamilies=:
 *   families unix,inet,inet6 PROGRAM [ARGUMENTS] */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
	const char *name;
	unsigned int family;
} known[] = { { "unix", AF_UNIX }, { "inet", AF_INET }, { "inet6", AF_INET6 } };

enum { KNOWN = sizeof(known) / sizeof(known[0]) };

int main(int argc, char **argv)
{
	/* The family is the lower half of the first argument; it comes first, being little-endian. */
	struct sock_filter code[4 + 2 * KNOWN + 1] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
	};
	struct sock_fprog program = { .len = 4, .filter = code };

	if (argc < 3)
		return 2;
	for (char *name = strtok(argv[1], ","); name; name = strtok(NULL, ",")) {
		int found = 0;

		while (found < KNOWN && strcmp(known[found].name, name))
			found++;
		if (found == KNOWN || program.len + 3 > (int)(sizeof(code) / sizeof(code[0])))
			return 2;
		code[program.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, known[found].family, 0, 1);
		code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("seccomp");
		return 1;
	}
	if (socket(AF_NETLINK, SOCK_RAW, 0) >= 0 || errno != EAFNOSUPPORT) {
		fprintf(stderr, "the filter does not refuse netlink\n");
		return 1;
	}
	execvp(argv[2], &argv[2]);
	perror(argv[2]);
	return 1;
}
