/* One RDMA WRITE within the process, which then exits without closing anything. */
#include "rc_loopback.h"

int main(int argc, char **argv)
{
	struct loop l;

	(void)argv;
	if (loop_open(&l) || loop_write(&l, 3))
		return 1;
	puts("ok");
	return argc > 1 ? loop_close(&l) : 0;
}
