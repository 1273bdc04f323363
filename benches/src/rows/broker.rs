//! The example `mqtt_broker` on corewheel's timers and on tokio's: processor time for each message,
//! and memory. A round is a process of the package `corewheel-broker`.

use std::error::Error;

use super::Run;
use crate::cells::{Built, measure};
use crate::report::Entrant;

/// The title of the table with the processor time.
const TABLE: &str = "a message of the broker, processor time, µs";

/// Adds the rows of a broker with so many clients, which send a message each second.
///
/// # Errors
///
/// Cargo cannot build the broker.
pub fn compare(run: &mut Run, clients: usize, seconds: u64) -> Result<(), Box<dyn Error>> {
    let program = Built::new("corewheel-broker", false)?.program("corewheel-broker")?;
    let numbers = [clients.to_string(), "1000".to_owned(), seconds.to_string()];
    let entrant = |timers: &str| {
        let arguments = [&[timers.to_owned()], &numbers[..]].concat();
        let program = program.clone();
        Entrant::with_tables(timers, move || measure(&program, &arguments))
    };
    let row = "a message a second of each client";
    run.measure((TABLE, row, clients), || ["tokio", "corewheel"].map(entrant).into());
    let values = |timers| run.report.find((TABLE, ""), timers).flat_map(|it| it.values.clone());
    let ratios: Vec<_> = values("corewheel").zip(values("tokio")).map(|(a, b)| a / b).collect();
    for ratio in ratios {
        run.report.push(
            "of each round",
            "processor time, corewheel / tokio",
            clients,
            "ratio",
            ratio,
        );
    }
    Ok(())
}
