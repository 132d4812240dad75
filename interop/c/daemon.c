/* The start of a server: query the device, call daemon(), work. The result is the content of the
 * file argv[1]. */
#include "rc_loopback.h"

#include <fcntl.h>

int main(int argc, char **argv)
{
	struct loop l;
	int file;

	if (argc < 2)
		return 2;
	file = open(argv[1], O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0666);
	if (file < 0 || loop_open(&l) || loop_write(&l, 1))
		return 1;
	/* Inherited objects are of no use after this: a careful server closes them first, a careless one
	 * does not. */
	if (argc > 2 && loop_close(&l))
		return 1;
	if (daemon(1, 1))
		return loop_fail("daemon");
	if (loop_open(&l) || loop_write(&l, 2) || loop_close(&l))
		return 1;
	return write(file, "ok", 2) != 2;
}
