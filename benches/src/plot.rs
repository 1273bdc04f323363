//! A plot for a row: the cost of an operation over a count, both logarithmic.

use std::error::Error;
use std::path::Path;

use crate::report::{Figure, distinct};
use plotters::prelude::*;
use plotters::style::full_palette::{BLUEGREY, BROWN, CYAN, ORANGE, PINK, PURPLE, TEAL};

const SIZE: (u32, u32) = (900, 560);
/// The size of the text beside the axes.
const TEXT: u32 = 22;
/// The colours of the contenders. The first is corewheel's.
const COLOURS: [RGBColor; 9] = [RED, BLUE, ORANGE, TEAL, PURPLE, BROWN, PINK, BLUEGREY, CYAN];

/// Draws one row of a table: a line for each contender through its medians.
///
/// # Errors
///
/// If the file cannot be written.
pub fn draw(path: &Path, figures: &[&Figure]) -> Result<(), Box<dyn Error>> {
    let Some(first) = figures.first() else { return Ok(()) };
    let counts = figures.iter().map(|figure| figure.count as f64);
    let (from, to) = (counts.clone().fold(f64::MAX, f64::min), counts.fold(1.0, f64::max));
    let median = |figure: &Figure| figure.range().map_or(0.0, |[_, median, _]| median);
    let medians = figures.iter().map(|figure| median(figure));
    let (least, most) = (medians.clone().fold(f64::MAX, f64::min), medians.fold(0.0, f64::max));
    let names = distinct(figures.iter().map(|figure| &figure.contender));
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(&first.row, ("sans-serif", 28))
        .margin(16)
        .x_label_area_size(64)
        .y_label_area_size(96)
        .build_cartesian_2d(
            (from..(to * 1.01)).log_scale(),
            ((least / 1.5)..(most * 1.5)).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("count")
        .y_desc(&first.table)
        .x_label_formatter(&|count| format!("{count:.0}"))
        // Plots are read on phones, too.
        .label_style(("sans-serif", TEXT))
        .axis_desc_style(("sans-serif", TEXT))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    for (name, colour) in names.into_iter().zip(COLOURS.iter().cycle()) {
        let width = if *name == first.contender { 4 } else { 2 };
        let style = colour.stroke_width(width);
        let of_this = figures.iter().filter(|figure| figure.contender == *name);
        let points: Vec<_> = of_this.map(|figure| (figure.count as f64, median(figure))).collect();
        chart
            .draw_series(LineSeries::new(points.clone(), style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
        chart.draw_series(points.into_iter().map(|at| Circle::new(at, width, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .label_font(("sans-serif", TEXT))
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}
