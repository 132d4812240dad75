/* For programs that make calls which are wrong in every way: a call that should have failed is
 * reported and counted, one that crashes or hangs is reported. */
#ifndef WRONG_H
#define WRONG_H

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The call that is being made. */
static char what[256] = "the beginning";
static int failures;

static void crashed(int number)
{
	/* Nothing else is safe here. */
	ssize_t ignored = write(2, what, strlen(what));
	ignored = number == SIGALRM ? write(2, ": waits for ever\n", 17) : write(2, ": crashed\n", 10);
	(void)ignored;
	_exit(128 + number);
}

/* The program ends with a message if a call crashes, or if it takes longer than this. */
static void guard(unsigned seconds)
{
	struct sigaction action = { .sa_handler = crashed };
	int numbers[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGALRM };

	for (size_t i = 0; i < COUNT(numbers); i++)
		sigaction(numbers[i], &action, NULL);
	alarm(seconds);
}

static void check(int good, const char *wrong)
{
	if (good)
		return;
	failures++;
	fprintf(stderr, "%s: %s (errno %d, %s)\n", what, wrong, errno, strerror(errno));
}

/* What the rest of the program relies on. */
static void must(int good, const char *which)
{
	if (good)
		return;
	fprintf(stderr, "%s: %s: %s\n", what, which, strerror(errno));
	exit(1);
}

/* What main returns. */
static int verdict(void)
{
	if (failures)
		return 1;
	printf("every check passed\n");
	return 0;
}

#endif
