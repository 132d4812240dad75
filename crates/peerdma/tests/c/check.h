/* Checks that end the programs of this directory and of interop/c. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What must hold. */
#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #what, errno,                \
				strerror(errno));                                                                      \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)
/* What must hold, and errno with it. */
#define CHECK_ERRNO(what, expected)                                                                                    \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		CHECK(what);                                                                                           \
		CHECK(errno == (expected));                                                                            \
	} while (0)

#endif
