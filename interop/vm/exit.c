/* exit STATUS: ends an emulated arm64 machine with a status, by QEMU's semihosting. */
#include <stdlib.h>

int main(int argc, char **argv)
{
	/* SYS_EXIT_EXTENDED takes the reason ADP_Stopped_ApplicationExit, and the status. */
	unsigned long block[2] = { 0x20026, argc > 1 ? strtoul(argv[1], NULL, 10) : 0 };
	register unsigned long operation __asm__("x0") = 0x20;
	register unsigned long *argument __asm__("x1") = block;

	__asm__ volatile("hlt #0xf000" : "+r"(operation) : "r"(argument) : "memory");
	return 1;
}
