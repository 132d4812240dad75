/* The program that door.rs runs behind the sysfs door: system calls without libc's help, awkward
 * addresses, many threads, signals. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HCA "/sys/class/infiniband/peerdma0"
#define FILE_ HCA "/node_type"
#define EXPECT(condition)                                                        \
	do {                                                                     \
		if (!(condition)) {                                              \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__,    \
				#condition, errno);                              \
			exit(1);                                                 \
		}                                                                \
	} while (0)
#define FAILS(call, error) EXPECT((errno = 0, (call) == -1) && errno == (error))

static long openat_(int dir, const char *path, int flags) { return syscall(SYS_openat, dir, path, flags, 0); }

static void read_it(long fd)
{
	char text[16] = "";
	EXPECT(fd >= 0);
	EXPECT(read(fd, text, sizeof text) == 6 && !strcmp(text, "1: CA\n"));
	EXPECT(read(fd, text, sizeof text) == 0);
	close(fd);
}

/* Every watched call, made as Go and others make them. */
static void raw(void)
{
	struct stat st, lst;
	struct statx stx;
	struct { unsigned long long flags, mode, resolve; } how = { O_RDONLY | O_CLOEXEC, 0, 0 };
	char target[64];
	long fd, n;

	read_it(openat_(AT_FDCWD, FILE_, O_RDONLY));
	read_it(syscall(SYS_openat2, AT_FDCWD, FILE_, &how, sizeof how));
	fd = openat_(AT_FDCWD, FILE_, O_RDONLY | O_CLOEXEC);
	EXPECT(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	EXPECT(!fstat(fd, &lst));
	EXPECT(!syscall(SYS_newfstatat, AT_FDCWD, FILE_, &st, 0));
	EXPECT(st.st_ino == lst.st_ino && st.st_dev == lst.st_dev && S_ISREG(st.st_mode));
	EXPECT((st.st_mode & 0777) == 0444);
	EXPECT(!syscall(SYS_statx, AT_FDCWD, FILE_, 0, STATX_BASIC_STATS, &stx) && stx.stx_ino == st.st_ino);
	close(fd);
	EXPECT(!syscall(SYS_newfstatat, AT_FDCWD, HCA, &st, 0) && S_ISDIR(st.st_mode));
	EXPECT(!syscall(SYS_newfstatat, AT_FDCWD, HCA, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode));
	EXPECT(!syscall(SYS_faccessat, AT_FDCWD, FILE_, R_OK));
	FAILS(syscall(SYS_faccessat, AT_FDCWD, HCA "/no", F_OK), ENOENT);
	n = syscall(SYS_readlinkat, AT_FDCWD, HCA, target, sizeof target);
	EXPECT(n == 58 && !memcmp(target, "../../devices/virtual/", 22));
	EXPECT(syscall(SYS_readlinkat, AT_FDCWD, HCA, target, 4) == 4);
	FAILS(syscall(SYS_readlinkat, AT_FDCWD, FILE_, target, sizeof target), EINVAL);
#ifdef SYS_open
	read_it(syscall(SYS_open, FILE_, O_RDONLY));
	EXPECT(!syscall(SYS_stat, HCA, &st) && S_ISDIR(st.st_mode));
	EXPECT(!syscall(SYS_lstat, HCA, &st) && S_ISLNK(st.st_mode));
	EXPECT(!syscall(SYS_access, FILE_, R_OK));
	EXPECT(syscall(SYS_readlink, HCA, target, sizeof target) == 58);
#endif
	/* Relative to a directory: one of ours, the kernel's, the working directory. */
	fd = openat_(AT_FDCWD, HCA, O_RDONLY | O_DIRECTORY);
	read_it(openat_(fd, "node_type", O_RDONLY));
	read_it(openat_(fd, "device/infiniband/peerdma0/node_type", O_RDONLY));
	close(fd);
	fd = openat_(AT_FDCWD, "/sys/class", O_PATH | O_DIRECTORY);
	read_it(openat_(fd, "infiniband/peerdma0/node_type", O_RDONLY));
	close(fd);
	EXPECT(!chdir("/sys/class"));
	read_it(openat_(AT_FDCWD, "infiniband/peerdma0/node_type", O_RDONLY));
	read_it(openat_(AT_FDCWD, "../class//infiniband/./peerdma0/ports/../node_type", O_RDONLY));
	/* Refusals. */
	FAILS(openat_(AT_FDCWD, FILE_, O_WRONLY), EACCES);
	FAILS(openat_(AT_FDCWD, HCA, O_RDWR), EISDIR);
	FAILS(openat_(AT_FDCWD, FILE_, O_RDONLY | O_DIRECTORY), ENOTDIR);
	FAILS(openat_(AT_FDCWD, HCA, O_RDONLY | O_NOFOLLOW), ELOOP);
	FAILS(openat_(AT_FDCWD, HCA "/no", O_RDONLY), ENOENT);
	FAILS(openat_(AT_FDCWD, FILE_, O_RDWR | O_CREAT), ENOENT);
	FAILS(openat_(AT_FDCWD, (char *)8, O_RDONLY), EFAULT);
	FAILS(syscall(SYS_newfstatat, AT_FDCWD, FILE_, (void *)8, 0), EFAULT);
	puts("raw ok");
}

/* A path that ends where readable memory ends. */
static void edge(void)
{
	char *map = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *path = map + 4096 - sizeof FILE_;

	EXPECT(map != MAP_FAILED && !mprotect(map + 4096, 4096, PROT_NONE));
	memcpy(path, FILE_, sizeof FILE_);
	read_it(openat_(AT_FDCWD, path, O_RDONLY));
	/* One that crosses into a page that is there, and one that has no end. */
	EXPECT(!mprotect(map + 4096, 4096, PROT_READ | PROT_WRITE));
	memcpy(map + 4096 - 20, FILE_, sizeof FILE_);
	read_it(openat_(AT_FDCWD, map + 4096 - 20, O_RDONLY));
	memset(map, '/', 8192);
	FAILS(openat_(AT_FDCWD, map, O_RDONLY), ENAMETOOLONG);
	EXPECT(!mprotect(map + 4096, 4096, PROT_NONE));
	FAILS(openat_(AT_FDCWD, map + 4000, O_RDONLY), EFAULT);
	puts("edge ok");
}

static void *reader(void *arg)
{
	for (int i = 0; i < 200; i++) {
		struct stat st;

		read_it(openat_(AT_FDCWD, FILE_, O_RDONLY));
		EXPECT(!stat("/", &st));
	}
	return arg;
}

static void threads(void)
{
	pthread_t thread[8];

	for (int i = 0; i < 8; i++)
		EXPECT(!pthread_create(&thread[i], 0, reader, 0));
	for (int i = 0; i < 8; i++)
		EXPECT(!pthread_join(thread[i], 0));
	puts("threads ok");
}

static volatile sig_atomic_t alarms;
static void on_alarm(int signal) { (void)signal; alarms++; }

/* Signals that arrive all the time, as Go's do: no call is lost or made twice. */
static void storm(void)
{
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct itimerspec every = { { 0, 100000 }, { 0, 100000 } };
	timer_t timer;

	sigaction(SIGUSR1, &action, 0);
	EXPECT(!timer_create(CLOCK_MONOTONIC, &event, &timer) && !timer_settime(timer, 0, &every, 0));
	do
		for (int i = 0; i < 500; i++) {
			long fd = openat_(AT_FDCWD, FILE_, O_RDONLY);

			EXPECT(fd == 3);
			read_it(fd);
		}
	while (alarms < 10);
	puts("storm ok");
}

static void on_term(int signal) { _exit(signal); }

/* Exits with the number of the signal it gets. */
static void wait_for_signal(void)
{
	signal(SIGTERM, on_term);
	signal(SIGINT, on_term);
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}

/* Reads the file once for each line of input, and exits with 5. */
static void step(void)
{
	char line[64];

	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		read_it(openat_(AT_FDCWD, FILE_, O_RDONLY));
		puts("read");
		fflush(stdout);
	}
	exit(5);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } parts[] = {
		{ "raw", raw },	    { "edge", edge },		  { "threads", threads },
		{ "storm", storm }, { "signal", wait_for_signal }, { "step", step },
	};

	for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
		if (argc > 1 && !strcmp(argv[1], parts[i].name)) {
			parts[i].run();
			return 0;
		}
	return 2;
}
