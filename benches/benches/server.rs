//! What do timers cost an echo server?
//!
//! Prints the round trips a second and the serving thread's processor time for each. The servers
//! take turns for three rounds.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use corewheel_bench::sections::{glommio_works, scaling, server};

fn main() {
    let test = std::env::args().any(|argument| argument == "--test");
    let (rounds, counts): (_, &[usize]) = if test { (1, &[64]) } else { (3, &[1, 64, 512]) };
    println!("| row | connections | server | median | min | max |\n|---|--:|---|--:|--:|--:|");
    for connections in counts.iter().copied() {
        let figures = server::measure(&scaling::cores(), rounds, connections, glommio_works());
        for figure in figures {
            println!(
                "| {} | {connections} | {} | {:.1} | {:.1} | {:.1} |",
                figure.row,
                figure.contender,
                figure.median(),
                figure.values.min(),
                figure.values.max()
            );
        }
    }
}
