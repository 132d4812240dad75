// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * A module that asks the kernel's p2pdma, for crates/pci/examples/judge.rs.
 *
 * /proc/p2pdma/pairs has a line for each pair of PCI functions: provider, client, map type (a
 * number of enum pci_p2pdma_map_type), distance. The distance of a refused pair is known to
 * calc_map_type_and_dist alone, so a return probe takes both from there.
 *
 * /proc/p2pdma/ask is written a question, and then read for the answer:
 *
 *   acs BDF BITS                    sets the ACS control register; its value, or -2 without one
 *   ids BDF VENDOR DEVICE           what the kernel is to take the function for
 *   provide BDF BAR SIZE OFFSET     pci_p2pdma_add_resource
 *   publish BDF 0|1                 pci_p2pmem_publish
 *   many PROVIDER [CLIENT]...       pci_p2pdma_distance_many
 *   find [CLIENT]...                pci_p2pmem_find_many: a function, or "none"
 *   enable TEXT                     pci_p2pdma_enable_store: a function, "any", "no", or an error
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci-p2pdma.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>

#define CLIENTS 16

static DEFINE_MUTEX(lock);
static char answer[64];
static struct proc_dir_entry *dir;

/* What the last call of calc_map_type_and_dist found. */
static int last_type, last_dist;
static unsigned long calls;

struct call {
	int *dist;
};

static int on_entry(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct call *call = (struct call *)instance->data;

	call->dist = (int *)regs_get_kernel_argument(regs, 2);
	return 0;
}

static int on_return(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct call *call = (struct call *)instance->data;

	last_type = (int)regs_return_value(regs);
	last_dist = *call->dist;
	calls++;
	return 0;
}

static struct kretprobe probe = {
	.kp.symbol_name = "calc_map_type_and_dist",
	.entry_handler = on_entry,
	.handler = on_return,
	.data_size = sizeof(struct call),
	.maxactive = 8,
};

static int pairs_show(struct seq_file *seq, void *unused)
{
	struct pci_dev *provider = NULL, *client;
	unsigned long before;

	mutex_lock(&lock);
	for_each_pci_dev(provider) {
		client = NULL;
		for_each_pci_dev(client) {
			before = calls;
			pci_p2pdma_distance(provider, &client->dev, false);
			if (calls != before + 1)
				seq_printf(seq, "%s %s is not seen\n", pci_name(provider), pci_name(client));
			else
				seq_printf(seq, "%s %s %d %d\n", pci_name(provider), pci_name(client), last_type,
					   last_dist);
		}
		cond_resched();
	}
	mutex_unlock(&lock);
	return 0;
}

/* With a reference. */
static struct pci_dev *function(const char *name)
{
	unsigned int domain, bus, device, number;

	if (!name || sscanf(name, "%x:%x:%x.%x", &domain, &bus, &device, &number) != 4)
		return NULL;
	return pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(device, number));
}

static void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vscnprintf(answer, sizeof(answer), format, args);
	va_end(args);
}

/* The numbers that follow: how many there are. */
static int numbers(char *rest, unsigned long long *out, int count)
{
	int n = 0;
	char *word;

	while (n < count && (word = strsep(&rest, " ")) && !kstrtoull(word, 0, &out[n]))
		n++;
	return n;
}

static void set_acs(struct pci_dev *dev, u16 bits)
{
	u16 now = 0;

	if (!dev->acs_cap) {
		say("%d", -ENOENT);
		return;
	}
	pci_write_config_word(dev, dev->acs_cap + PCI_ACS_CTRL, bits);
	pci_read_config_word(dev, dev->acs_cap + PCI_ACS_CTRL, &now);
	say("%u", now);
}

/* The functions that follow. */
static void with_clients(char *rest, struct pci_dev *provider)
{
	struct device *clients[CLIENTS];
	struct pci_dev *found;
	int n = 0, i;
	char *word;

	while ((word = strsep(&rest, " "))) {
		struct pci_dev *client = *word && n < CLIENTS ? function(word) : NULL;

		if (client)
			clients[n++] = &client->dev;
	}
	if (provider) {
		say("%d", pci_p2pdma_distance_many(provider, clients, n, false));
	} else {
		found = pci_p2pmem_find_many(clients, n);
		say("%s", found ? pci_name(found) : "none");
		pci_dev_put(found);
	}
	for (i = 0; i < n; i++)
		put_device(clients[i]);
}

static void enable(const char *text)
{
	struct pci_dev *dev = NULL;
	bool use = false;
	int error = pci_p2pdma_enable_store(text, &dev, &use);

	if (error)
		say("%d", error);
	else
		say("%s", dev ? pci_name(dev) : use ? "any" : "no");
	/* It keeps the reference of a device that it refuses to name, too. */
	if (!error)
		pci_dev_put(dev);
}

static int ask(char *line)
{
	const char *what = strsep(&line, " ");
	unsigned long long n[3] = {};
	struct pci_dev *dev;

	if (!strcmp(what, "enable")) {
		enable(line ? line : "");
		return 0;
	}
	if (!strcmp(what, "find")) {
		with_clients(line, NULL);
		return 0;
	}
	dev = function(strsep(&line, " "));
	if (!dev)
		return -ENODEV;
	if (!strcmp(what, "acs") && numbers(line, n, 1) == 1) {
		set_acs(dev, n[0]);
	} else if (!strcmp(what, "ids") && numbers(line, n, 2) == 2) {
		dev->vendor = n[0];
		dev->device = n[1];
		say("0");
	} else if (!strcmp(what, "provide") && numbers(line, n, 3) == 3) {
		say("%d", pci_p2pdma_add_resource(dev, n[0], n[1], n[2]));
	} else if (!strcmp(what, "publish") && numbers(line, n, 1) == 1) {
		pci_p2pmem_publish(dev, n[0]);
		say("0");
	} else if (!strcmp(what, "many")) {
		with_clients(line, dev);
	} else {
		pci_dev_put(dev);
		return -EINVAL;
	}
	pci_dev_put(dev);
	return 0;
}

static ssize_t ask_write(struct file *file, const char __user *from, size_t len, loff_t *at)
{
	char line[512];
	int error;

	if (len >= sizeof(line))
		return -E2BIG;
	if (copy_from_user(line, from, len))
		return -EFAULT;
	line[len] = 0;
	mutex_lock(&lock);
	error = ask(line);
	mutex_unlock(&lock);
	return error ? error : len;
}

static ssize_t ask_read(struct file *file, char __user *to, size_t len, loff_t *at)
{
	return simple_read_from_buffer(to, len, at, answer, strlen(answer));
}

static const struct proc_ops ask_ops = {
	.proc_read = ask_read,
	.proc_write = ask_write,
	.proc_lseek = default_llseek,
};

static int __init start(void)
{
	int error = register_kretprobe(&probe);

	if (error) {
		pr_err("no probe of calc_map_type_and_dist: %d\n", error);
		return error;
	}
	dir = proc_mkdir("p2pdma", NULL);
	if (!dir || !proc_create_single("pairs", 0444, dir, pairs_show) ||
	    !proc_create("ask", 0600, dir, &ask_ops)) {
		proc_remove(dir);
		unregister_kretprobe(&probe);
		return -ENOMEM;
	}
	return 0;
}

static void __exit stop(void)
{
	proc_remove(dir);
	unregister_kretprobe(&probe);
}

module_init(start);
module_exit(stop);
MODULE_DESCRIPTION("What p2pdma says of each pair of PCI functions");
/* p2pdma's functions are for modules under the GPL alone; so this one is, too, once it is loaded. */
MODULE_LICENSE("GPL");
