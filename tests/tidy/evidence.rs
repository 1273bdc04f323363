//! Each type that is built from timers says which programs need it, and what it costs by hand.

use super::{Source, check, sources};

/// The modules of the kit, and the public ones of the package of containers.
fn modules() -> Vec<Source> {
    let of_kit = sources(&["src/kit"]).into_iter().filter(|source| {
        let path = source.path.trim_start_matches("src/kit/").trim_end_matches("/mod.rs");
        path != "mod.rs" && !path.contains('/')
    });
    let containers = sources(&["adapters/kit/src"]);
    let root = containers.iter().find(|source| source.path.ends_with("src/lib.rs"));
    let root = root.map(|root| root.text.clone()).expect("the package has its root");
    let public = root.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let public: Vec<_> = public.collect();
    let mut modules: Vec<_> = of_kit.collect();
    let count = modules.len() + public.len();
    modules.extend(containers.into_iter().filter(|source| {
        let path = source.path.trim_start_matches("adapters/kit/src/");
        public.contains(&path.trim_end_matches(".rs").trim_end_matches("/mod"))
    }));
    assert_eq!(modules.len(), count, "each public module has its file");
    modules
}

/// Whether a paragraph of a module's documentation begins with "For", and says what the same is by
/// hand.
fn has_evidence(source: &Source) -> bool {
    let head = source.text.lines().map_while(|line| line.strip_prefix("//!"));
    let text: Vec<_> = head.map(str::trim).collect();
    text.split(|line| line.is_empty()).any(|paragraph| {
        let paragraph = paragraph.join(" ");
        paragraph.starts_with("For ") && paragraph.contains("By hand")
    })
}

#[test]
fn each_type_built_from_timers_says_for_whom_it_is_and_its_cost_by_hand() {
    let modules = modules();
    assert!(modules.len() >= 6, "the modules are found");
    check(
        "a paragraph of the module begins with \"For\" and goes on with \"By hand\"",
        modules.iter().filter(|of| !has_evidence(of)).map(|of| (of.path.clone(), 1)),
    );
}

#[test]
fn module_without_its_users_or_its_cost_by_hand_is_found() {
    let has = |text: &str| has_evidence(&Source::new("x.rs", text));
    assert!(has("//! A.\n//!\n//! For servers. By\n//! hand it is more.\n"));
    assert!(!has("//! A.\n//!\n//! For servers.\n"));
    assert!(!has("//! A.\n//!\n//! By hand it is more.\n"));
    assert!(!has("//! A.\n\n// For servers. By hand it is more.\n"));
}
