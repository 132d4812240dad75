use super::netns::{Netns, has_ipv6, join_by_veth, not_run, with_namespaces};
use super::*;

fn ips(dev: &Netdev) -> Vec<IpAddr> {
    dev.gids().into_iter().map(Gid::to_ip).collect()
}

fn v4(text: &str) -> IpAddr {
    IpAddr::V4(text.parse().expect("a literal address"))
}

#[test]
fn the_machine_of_the_test_has_a_netdev() {
    let found = Netdev::find().expect("at least lo");
    assert_eq!(Netdev::named(&found.name).expect("it has a name").index, found.index);
    assert!(!found.gids().is_empty() || !found.is_loopback);
    assert!(matches!(Netdev::named("no such dev"), Err(NetdevError::NotFound(_))));
}

#[test]
fn lo_alone_even_down() {
    with_namespaces(|[ns]: [Netns; 1]| {
        let lo = Netdev::find().expect("lo");
        assert!(lo.is_loopback && !lo.is_up && !lo.is_running);
        assert_eq!(ips(&lo), [v4("127.0.0.1")]);
        ns.ip("link set lo up");
        let lo = Netdev::find().expect("lo");
        assert!(lo.is_running && lo.mtu == 65536);
        assert_eq!(ips(&lo)[0], v4("127.0.0.1"));
    });
}

#[test]
fn the_default_route_wins_then_the_first_up_and_never_a_bridge() {
    with_namespaces(|[other, ns]: [Netns; 2]| {
        ns.ip("link set lo up");
        ns.ip("link add docker0 type bridge");
        ns.ip("addr add 172.17.0.1/16 dev docker0");
        ns.ip("link set docker0 up");
        assert_eq!(Netdev::find().expect("lo").name, "lo");

        for (name, host) in [("first", 1), ("second", 2)] {
            ns.ip(&format!("link add {name} type veth peer name {name} netns {}", other.path()));
            ns.ip(&format!("addr add 10.{host}.0.1/24 dev {name}"));
            ns.ip(&format!("link set {name} up"));
            other.ip(&format!("link set {name} up"));
            ns.enter(|| ());
        }
        assert_eq!(Netdev::find().expect("first").name, "first");
        ns.ip("route add default via 10.2.0.254 metric 100");
        ns.ip("route add default via 10.1.0.254 metric 200");
        assert_eq!(Netdev::find().expect("second").name, "second");
    });
}

#[test]
fn gids_are_ipv4_then_global_ipv6_then_link_local() {
    with_namespaces(|[ns]: [Netns; 1]| {
        ns.ip("link add nic type veth peer name far");
        ns.ip("link set nic address 02:00:00:00:00:07 up");
        if has_ipv6() {
            ns.ip("addr add fd00::5/64 dev nic nodad");
        }
        ns.ip("addr add 10.0.0.1/24 dev nic");
        ns.ip("addr add 10.0.0.2/24 dev nic");
        ns.ip("addr add 127.9.9.9/32 dev nic");
        let nic = Netdev::named("nic").expect("it was made");
        assert_eq!(nic.mac, [2, 0, 0, 0, 0, 7]);
        assert_eq!((nic.kind.as_str(), nic.mtu), ("veth", 1500));
        let first = nic.addresses.iter().find(|a| a.ip == v4("10.0.0.1")).expect("it was added");
        assert_eq!((first.prefix, first.scope), (24, Scope::Global));

        let ips = ips(&nic);
        assert_eq!(ips[..2], [v4("10.0.0.1"), v4("10.0.0.2")]);
        assert!(!ips.contains(&v4("127.9.9.9")));
        if has_ipv6() {
            // The link-local address may still be tentative, and is then absent.
            assert_eq!(ips[2], "fd00::5".parse::<IpAddr>().expect("a literal address"));
        } else {
            not_run("ipv6", "this kernel has no IPv6");
        }
    });
}

#[test]
fn a_watch_reports_new_addresses_and_lost_links() {
    with_namespaces(|[left, right]: [Netns; 2]| {
        join_by_veth(&left, &right);
        let watch = left.enter(Watch::new).expect("rtnetlink groups are open to all");
        left.ip("addr add 10.77.0.9/24 dev veth0");
        assert!(watch.drain().expect("readable"));
        right.ip("link set veth0 down");
        let mut poll = [rustix::event::PollFd::new(&watch, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut poll, None).expect("the carrier is reported");
        assert!(watch.drain().expect("readable"));
        let dev = left.enter(|| Netdev::named("veth0")).expect("still there");
        assert!(dev.is_up && !dev.is_running);
    });
}

#[test]
fn ioctls_report_what_rtnetlink_reports() {
    with_namespaces(|[left, right]: [Netns; 2]| {
        join_by_veth(&left, &right);
        left.ip("addr add 10.77.0.9/32 dev veth0 label veth0:more");
        left.ip("addr add 169.254.7.7/16 dev veth0 scope link");
        left.ip("link add bridge0 type bridge");
        left.ip("route add default via 10.77.0.254");
        left.enter(|| {
            // A link-local IPv6 address may become usable between two reads, and the order of the
            // others is not reported.
            let sorted = |mut all: Vec<Netdev>| {
                for dev in &mut all {
                    let is_link_local =
                        |a: &Address| matches!(a.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
                    dev.addresses.retain(|a| !is_link_local(a));
                    dev.addresses
                        .sort_by_key(|a| (Address::rank(a), a.ip.is_ipv6().then_some(a.ip)));
                }
                all.sort_by_key(|dev| dev.index);
                all
            };
            let told = sorted(ioctl::all().expect("a socket can be asked"));
            let by_netlink = sorted(Netdev::by_netlink().expect("rtnetlink is allowed here"));
            assert_eq!(told, by_netlink);
            assert!(told.iter().any(|dev| dev.kind == "bridge"));
            assert_eq!(ioctl::default_route(libc::AF_INET).as_deref(), Some("veth0"));
            assert_eq!(ioctl::default_route(libc::AF_INET6), None);
        });
    });
}
