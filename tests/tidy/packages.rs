//! What each published package brings along, and that it is checked.

use std::fs;
use std::path::{Path, PathBuf};

use super::{ADAPTERS, check, text_of};

/// The folders of the published packages, but for that of the service.
fn packages(root: &Path) -> Vec<PathBuf> {
    let adapters = fs::read_dir(root.join(ADAPTERS)).expect("there is a folder of adapters");
    let adapters = adapters.map(|entry| entry.expect("a folder can be read to its end").path());
    adapters.chain([root.join("shards")]).collect()
}

#[test]
fn each_package_has_the_licences_of_the_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let packages = packages(root);
    assert!(packages.len() >= 4, "{packages:?}");
    let mut places = Vec::new();
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let text = fs::read_to_string(root.join(licence)).expect("there is a licence");
        let lacks = |package: &&PathBuf| {
            fs::read_to_string(package.join(licence)).ok().as_ref() != Some(&text)
        };
        let of_package = |package: &PathBuf| (package.join(licence).display().to_string(), 1);
        places.extend(packages.iter().filter(lacks).map(of_package));
    }
    check("a package has the licences themselves, as it is published alone", places);
}

/// The words of a list in the script of all checks.
fn listed(name: &str) -> Vec<String> {
    let script = text_of(".ci/run");
    let after = script.split_once(&format!("\n{name}=(")).expect("the script has this list").1;
    let list = after.split_once(')').expect("a list ends").0;
    list.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn each_published_package_is_packed_and_checked() {
    let packages = packages(Path::new(env!("CARGO_MANIFEST_DIR")));
    let names = packages.iter().map(|package| {
        let manifest = fs::read_to_string(package.join("Cargo.toml")).expect("a package has one");
        let name = manifest.split_once("\nname = \"").expect("a package has a name").1;
        name.split('"').next().unwrap_or_default().to_owned()
    });
    let mut names: Vec<_> = names.chain(["corewheel".to_owned()]).collect();
    names.sort();
    let mut checked = listed("packages");
    checked.sort();
    assert_eq!(checked, names);
}

#[test]
fn each_piece_of_the_checks_is_run_on_a_change() {
    let workflow = text_of(".github/workflows/ci.yml");
    let matrix = workflow.split_once("pieces:\n          - ").expect("the workflow has pieces").1;
    let matrix = matrix.split_once("steps:").expect("the workflow has steps").0;
    let mut run: Vec<_> = matrix.split_whitespace().filter(|word| *word != "-").collect();
    run.sort_unstable();
    let mut pieces = listed("pieces");
    pieces.extend(listed("long_pieces"));
    pieces.sort();
    assert_eq!(run, pieces);
}
