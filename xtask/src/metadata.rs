//! What `cargo metadata` knows about the workspace.

use std::path::PathBuf;

use serde_json::Value;

use crate::sh::{Outcome, cargo, read};

/// A crate of the workspace or one it depends on.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: Option<String>,
    /// `None` for a crate of the workspace.
    pub(crate) source: Option<String>,
    pub(crate) manifest: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of a `[dependencies]` table.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
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

fn packages(more: &[&str]) -> Outcome<Vec<Package>> {
    let text = read(cargo().args(["metadata", "--format-version", "1", "--locked"]).args(more))?;
    let json: Value =
        serde_json::from_str(&text).map_err(|err| format!("cargo metadata: {err}"))?;
    let list = json["packages"].as_array().ok_or("cargo metadata: no packages")?;
    Ok(list.iter().map(package).collect())
}

fn package(json: &Value) -> Package {
    let dependencies = json["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    Package {
        name: text(&json["name"]).unwrap_or_default(),
        version: text(&json["version"]).unwrap_or_default(),
        licence: text(&json["license"]),
        source: text(&json["source"]),
        manifest: text(&json["manifest_path"]).unwrap_or_default().into(),
        dependencies: dependencies
            .iter()
            .map(|dep| Dependency {
                name: text(&dep["name"]).unwrap_or_default(),
                kind: text(&dep["kind"]),
                target: text(&dep["target"]),
                local: dep["path"].is_string(),
            })
            .collect(),
    }
}

fn text(json: &Value) -> Option<String> {
    json.as_str().map(str::to_owned)
}
