//! What `cargo metadata` knows about the workspace.

use std::path::PathBuf;

use serde_json::Value;

use crate::sh::{Outcome, cargo, read};

/// A crate of the workspace or one it depends on.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    /// Its name in the tables of the house: without `peerdma-`.
    pub(crate) name: String,
    /// As Cargo has it.
    pub(crate) package: String,
    pub(crate) version: String,
    pub(crate) licence: Option<String>,
    /// `None` for a crate of the workspace.
    pub(crate) source: Option<String>,
    pub(crate) manifest: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    /// Whether it is published to a registry.
    pub(crate) is_published: bool,
    /// Which of a description, keywords, categories and a readme its manifest lacks.
    pub(crate) lacks: Vec<&'static str>,
}

/// One line of a `[dependencies]` table.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    /// As [`Package::name`].
    pub(crate) name: String,
    /// `dev` or `build`; `None` for a plain one.
    pub(crate) kind: Option<String>,
    /// `cfg(...)`, when it applies only there.
    pub(crate) target: Option<String>,
    /// Whether it is a crate of the workspace.
    pub(crate) local: bool,
}

/// The crates of the workspace.
pub(crate) fn workspace() -> Outcome<Vec<Package>> {
    packages(&["--no-deps"])
}

/// Every crate that a build of the workspace may contain.
pub(crate) fn everything() -> Outcome<Vec<Package>> {
    packages(&[])
}

/// Checks that the lock file of the fuzz targets, which are a workspace of their own, has the
/// current dependencies of the crates.
pub(crate) fn check_fuzz_lock() -> Outcome {
    let asked = ["metadata", "--format-version", "1", "--locked"];
    let known = read(cargo().args(asked).args(["--manifest-path", "fuzz/Cargo.toml"]));
    known.map(drop).map_err(|why| {
        format!("fuzz/Cargo.lock is behind Cargo.lock (run cargo metadata in fuzz/): {why}")
    })
}

fn packages(more: &[&str]) -> Outcome<Vec<Package>> {
    let text = read(cargo().args(["metadata", "--format-version", "1", "--locked"]).args(more))?;
    let json: Value =
        serde_json::from_str(&text).map_err(|err| format!("cargo metadata: {err}"))?;
    let list = json["packages"].as_array().ok_or("cargo metadata: no packages")?;
    Ok(list.iter().map(package).collect())
}

fn package(json: &Value) -> Package {
    let dependencies = json["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let package = text(&json["name"]).unwrap_or_default();
    let is_empty = |key: &&str| match &json[*key] {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    Package {
        name: short(&package),
        package,
        version: text(&json["version"]).unwrap_or_default(),
        licence: text(&json["license"]),
        source: text(&json["source"]),
        manifest: text(&json["manifest_path"]).unwrap_or_default().into(),
        dependencies: dependencies
            .iter()
            .map(|dep| Dependency {
                name: short(dep["name"].as_str().unwrap_or_default()),
                kind: text(&dep["kind"]),
                target: text(&dep["target"]),
                local: dep["path"].is_string(),
            })
            .collect(),
        // No list means any registry, an empty list none.
        is_published: json["publish"].is_null(),
        lacks: ["description", "keywords", "categories", "readme"]
            .into_iter()
            .filter(is_empty)
            .collect(),
    }
}

fn short(package: &str) -> String {
    package.strip_prefix("peerdma-").unwrap_or(package).to_owned()
}

fn text(json: &Value) -> Option<String> {
    json.as_str().map(str::to_owned)
}
