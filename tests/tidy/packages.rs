//! What each published package brings along.

use std::fs;
use std::path::{Path, PathBuf};

use super::{ADAPTERS, check};

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
