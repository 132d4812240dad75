//! `cargo xtask publish --dry-run`: what a registry would get.

use clap::Args;

use crate::metadata::{Package, workspace};
use crate::sh::{Outcome, cargo, check};

/// The options of `cargo xtask publish`.
#[derive(Args)]
pub(crate) struct Options {
    /// Pack each crate and build it from its package; upload nothing. This is the only mode.
    #[arg(long, required = true)]
    dry_run: bool,
    /// Only pack, build nothing.
    #[arg(long)]
    no_verify: bool,
}

/// Packs every crate that is published, each after those that it uses, and builds it from its
/// package and theirs. The registry is not contacted.
pub(crate) fn run(options: &Options) -> Outcome {
    debug_assert!(options.dry_run, "clap requires it");
    manifests()?;
    let mut package = cargo();
    package.args(["package", "--workspace", "--locked", "--offline", "--allow-dirty"]);
    for private in workspace()?.iter().filter(|package| !package.is_published) {
        package.args(["--exclude", &private.package]);
    }
    if options.no_verify {
        package.arg("--no-verify");
    }
    check(&mut package)
}

/// Whether each published crate has the metadata that a registry shows, and uses only published
/// crates.
pub(crate) fn manifests() -> Outcome {
    let packages = workspace()?;
    let wrong: Vec<String> =
        packages.iter().flat_map(|package| wrong(package, &packages)).collect();
    if !wrong.is_empty() {
        return Err(format!("manifests:\n  {}", wrong.join("\n  ")));
    }
    let count = packages.iter().filter(|package| package.is_published).count();
    println!("publish: {count} crates have what a registry asks for");
    Ok(())
}

fn wrong(package: &Package, all: &[Package]) -> Vec<String> {
    if !package.is_published {
        return Vec::new();
    }
    let name = &package.package;
    let mut wrong: Vec<String> =
        package.lacks.iter().map(|what| format!("{name} has no {what}")).collect();
    if name != "peerdma" && !name.starts_with("peerdma-") {
        wrong.push(format!("{name} is not a name of ours"));
    }
    let private = |dep: &str| all.iter().any(|known| known.name == dep && !known.is_published);
    let used = package.dependencies.iter().filter(|dep| dep.kind.as_deref() != Some("dev"));
    let used = used.filter(|dep| dep.local && private(&dep.name));
    wrong.extend(used.map(|dep| format!("{name} uses {}, which is not published", dep.name)));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn package(package: &str, is_published: bool) -> Package {
        Package {
            name: package.to_owned(),
            package: package.to_owned(),
            version: "1.0.0".to_owned(),
            licence: None,
            source: None,
            manifest: "Cargo.toml".into(),
            dependencies: Vec::new(),
            is_published,
            lacks: Vec::new(),
        }
    }

    #[test]
    fn published_crates_have_a_description_our_name_and_no_private_dependency() {
        let rig = package("rig", false);
        let mut wire = package("peerdma-wire", true);
        assert!(wrong(&wire, &[]).is_empty() && wrong(&rig, &[]).is_empty());
        wire.lacks.push("readme");
        let (name, target) = ("rig".to_owned(), None);
        wire.dependencies.push(Dependency { name, kind: None, target, local: true });
        let found = wrong(&wire, &[rig]);
        assert_eq!(
            found,
            ["peerdma-wire has no readme", "peerdma-wire uses rig, which is not published"]
        );
        assert_eq!(wrong(&package("wire", true), &[]), ["wire is not a name of ours"]);
    }
}
