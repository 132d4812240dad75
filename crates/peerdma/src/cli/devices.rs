//! `peerdma devices`: the NICs that a Rust program of crate `verbs` has here, of both kinds.

use std::process::ExitCode;

use serde_json::{Value, json};
use verbs::{Device, DeviceAttr, GidEntry, PortAttr, Refusal};

/// What `peerdma devices` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What one device says of itself.
struct Known {
    name: String,
    is_soft: bool,
    /// Or why it cannot be opened.
    open: Result<Open, Refusal>,
}

struct Open {
    device: DeviceAttr,
    port: PortAttr,
    gids: Vec<GidEntry>,
    /// The address that peers reach it by.
    at: Option<GidEntry>,
}

impl Known {
    fn new(device: &Device) -> Self {
        let open = device.open().map(|context| Open {
            device: context.device_attr(),
            port: context.port_attr(),
            gids: context.gids(),
            at: context.default_gid(),
        });
        Self { name: device.name().to_owned(), is_soft: device.is_soft(), open }
    }

    fn provider(&self) -> &'static str {
        if self.is_soft { "software" } else { "libibverbs" }
    }

    fn row(&self) -> [String; 6] {
        let [state, mtu, netdev, address] = match &self.open {
            Ok(open) => [
                if open.port.active { "active" } else { "down" }.to_owned(),
                open.port.active_mtu.bytes().to_string(),
                open.port.netdev.clone(),
                open.at.map(|gid| gid.gid.to_ip().to_string()).unwrap_or_default(),
            ],
            Err(why) => [why.to_string(), String::new(), String::new(), String::new()],
        };
        [self.name.clone(), self.provider().to_owned(), state, mtu, netdev, address]
    }

    fn json(&self) -> Value {
        match &self.open {
            Ok(open) => json!({
                "name": self.name,
                "provider": self.provider(),
                "firmware": open.device.fw_ver,
                "node_guid": format!("{:016x}", open.device.node_guid.0),
                "active": open.port.active,
                "mtu": open.port.active_mtu.bytes(),
                "netdev": open.port.netdev,
                "address": open.at.map(|gid| gid.gid.to_ip().to_string()),
                "gids": open.gids.iter().map(|gid| json!({
                    "index": gid.index,
                    "gid": std::net::Ipv6Addr::from(gid.gid.0).to_string(),
                })).collect::<Vec<_>>(),
                "max_qp": open.device.max_qp,
                "max_mr": open.device.max_mr,
                "max_cqe": open.device.max_cqe,
            }),
            Err(why) => json!({
                "name": self.name,
                "provider": self.provider(),
                "refused": why.to_string(),
            }),
        }
    }
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let devices = match verbs::devices() {
        Ok(devices) => devices,
        Err(refusal) => {
            eprintln!("peerdma devices: {refusal}");
            return ExitCode::FAILURE;
        }
    };
    let known: Vec<Known> = devices.iter().map(Known::new).collect();
    if args.json {
        println!("{:#}", Value::from(known.iter().map(Known::json).collect::<Vec<_>>()));
    } else {
        print!("{}", table(known.iter().map(Known::row)));
    }
    ExitCode::SUCCESS
}

/// Rows with a head, in columns as wide as they need to be.
fn table(rows: impl Iterator<Item = [String; 6]>) -> String {
    let head = ["DEVICE", "PROVIDER", "PORT", "MTU", "NETDEV", "ADDRESS"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[at].len()).max().unwrap_or_default() + 2;
            line += &format!("{cell:width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}
