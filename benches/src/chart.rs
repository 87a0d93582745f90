//! Charts of the measurements, as SVG files: bars for a row, lines for the growth of a cost.

use core::error::Error;
use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::model::{Measured, POINTS, SUBJECTS};
use crate::row::Row;
use crate::rows::growth::Line;

type Drawn = Result<(), Box<dyn Error>>;

const FONT: &str = "sans-serif";
const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xb2);
const PEERS: RGBColor = RGBColor(0xc9, 0xb0, 0x8a);
const FLOOR: RGBColor = RGBColor(0x9a, 0x9a, 0x9a);
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);

/// Draws one file per row, and one per growing quantity.
pub(crate) fn draw(folder: &Path, rows: &[Row], lines: &[Line]) -> Drawn {
    fs::create_dir_all(folder)?;
    for against in rows.chunk_by(|a, b| (&a.row, a.threads) == (&b.row, b.threads)) {
        bars(folder, against)?;
    }
    for together in lines.chunk_by(|a, b| a.grows == b.grows) {
        grows(folder, together)?;
    }
    overview(folder, rows)
}

/// What the overview compares: a row, its peer, and what both of them do.
const COMPARED: [(&str, &str, &str); 5] = [
    ("token_bucket.allow", "governor", "one rate"),
    ("keyed.uniform_1k", "governor-keyed", "a rate per key"),
    ("concurrency.cycle", "tokio", "permits at once"),
    ("http.allow", "tower-governor", "an HTTP request"),
    ("policy.decide", "limitador", "a request by rules"),
];

/// Draws the decisions per second of one thread, beside the best known peer of each kind. Nothing
/// if a row is missing.
fn overview(folder: &Path, rows: &[Row]) -> Drawn {
    let found = COMPARED.map(|(name, peer, does)| {
        let is_it =
            |row: &&Row| row.row == name && row.threads == 1 && row.peer.as_deref() == Some(peer);
        let row = rows.iter().find(is_it)?;
        Some((does, peer, row.ours_ns, row.peer_ns?))
    });
    let found: Vec<_> = found.into_iter().flatten().collect();
    if found.len() < COMPARED.len() {
        return Ok(());
    }
    let path = folder.join("overview.svg");
    let area = canvas(&path, (BAR * (3 * found.len() as i32 + 2)) as u32)?;
    let text = |size: i32| (FONT, size).into_font().color(&INK);
    let title = "Millions of decisions per second, one thread (logarithmic)";
    area.draw(&Text::new(title, (12, 10), text(17)))?;
    let (left, room) = (300, 380.0);
    // From 0.1 to 100 millions.
    let width = |millions: f64| (((millions.log10() + 1.0) / 3.0).clamp(0.01, 1.0) * room) as i32;
    for ((does, peer, ours, theirs), place) in found.into_iter().zip(0..) {
        let lines = [("portcullis", ours, OURS), (peer, theirs, PEERS)];
        for ((label, nanos, colour), line) in lines.into_iter().zip(0..) {
            let (top, millions) = (16 + BAR * (3 * place + line + 1), 1_000.0 / nanos);
            let right = left + width(millions);
            let bar = [(left, top), (right, top + BAR - 8)];
            area.draw(&Rectangle::new(bar, colour.filled()))?;
            if line == 0 {
                area.draw(&Text::new(does, (12, top + 2), text(15)))?;
            }
            area.draw(&Text::new(label, (180, top + 2), text(15)))?;
            area.draw(&Text::new(
                format!("{millions:.1}"),
                (right + 6, top + 2),
                text(15),
            ))?;
        }
    }
    area.present()?;
    Ok(())
}

fn canvas(path: &Path, height: u32) -> Result<DrawingArea<SVGBackend<'_>, Shift>, Box<dyn Error>> {
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    Ok(area)
}

const WIDTH: u32 = 760;
const BAR: i32 = 26;
/// Space above the highest line, for the legend.
const ROOM: f64 = 1.7;

/// Draws the bars of one row: the floor, ours and each peer.
fn bars(folder: &Path, against: &[Row]) -> Drawn {
    let Some(row) = against.first() else {
        return Ok(());
    };
    let threads = if row.threads == 1 {
        String::new()
    } else {
        format!(".{}_threads", row.threads)
    };
    let name = format!("{}{threads}", row.row);
    let mut list = vec![
        ("floor", row.floor_ns, FLOOR),
        ("portcullis", row.ours_ns, OURS),
    ];
    list.extend(
        against
            .iter()
            .filter_map(|row| Some((row.peer.as_deref()?, row.peer_ns?, PEERS))),
    );
    let most = list.iter().map(|(_, nanos, _)| *nanos).fold(0.0, f64::max);

    let path = folder.join(format!("{name}.svg"));
    let area = canvas(&path, (BAR * (list.len() as i32 + 2)) as u32)?;
    let text = |size: i32| (FONT, size).into_font().color(&INK);
    area.draw(&Text::new(
        format!("{name}: nanoseconds for each operation"),
        (12, 10),
        text(17),
    ))?;
    let (left, room) = (170, 480.0);
    for ((label, nanos, colour), place) in list.into_iter().zip(1..) {
        let top = 12 + BAR * place;
        let right = left + (nanos / most * room) as i32;
        area.draw(&Rectangle::new(
            [(left, top), (right, top + BAR - 8)],
            colour.filled(),
        ))?;
        area.draw(&Text::new(label, (12, top + 2), text(15)))?;
        area.draw(&Text::new(
            format!("{nanos:.2}"),
            (right + 6, top + 2),
            text(15),
        ))?;
    }
    area.present()?;
    Ok(())
}

/// Draws all lines over one growing quantity.
fn grows(folder: &Path, lines: &[Line]) -> Drawn {
    let Some(first) = lines.first() else {
        return Ok(());
    };
    let points = || lines.iter().flat_map(|line| &line.points);
    let (least, most) = points().fold((f64::MAX, 0.0_f64), |(least, most), (x, _)| {
        (least.min(*x), most.max(*x))
    });
    let highest = points().map(|(_, nanos)| *nanos).fold(0.0, f64::max);
    if least >= most {
        // A machine with a single core has no chart over threads.
        return Ok(());
    }
    let path = folder.join(format!("by_{}.svg", first.grows));
    let area = canvas(&path, 420)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(
            format!("nanoseconds for each operation, by {}", first.grows),
            (FONT, 17),
        )
        .margin(14)
        .x_label_area_size(34)
        .y_label_area_size(60)
        .build_cartesian_2d((least..most).log_scale().base(2.0), 0.0..highest * ROOM)?;
    let ticks = first.points.len();
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels(ticks)
        .x_desc(first.grows)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_desc("ns")
        .label_style((FONT, 14))
        .draw()?;
    for (place, line) in lines.iter().enumerate() {
        let colour = Palette99::pick(place).to_rgba();
        let labelled = chart.draw_series(
            LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)).point_size(3),
        )?;
        labelled
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(FLOOR)
        .label_font((FONT, 14))
        .draw()?;
    area.present()?;
    Ok(())
}

/// Draws what the model predicts for many cores, as lines, and what was measured on one and two
/// cores, as rings.
pub(crate) fn many_cores(folder: &Path, measured: &Measured) -> Drawn {
    fs::create_dir_all(folder)?;
    let path = folder.join("many_cores.svg");
    let area = canvas(&path, 520)?;
    let (least, most) = (0.5, 1e5);
    let cores = POINTS[0] as f64..POINTS[POINTS.len() - 1] as f64;
    let mut chart = ChartBuilder::on(&area)
        .caption(
            "nanoseconds for each operation, by cores: predicted (lines), measured (rings)",
            (FONT, 17),
        )
        .margin(14)
        .x_label_area_size(34)
        .y_label_area_size(60)
        .build_cartesian_2d(cores.log_scale().base(2.0), (least..most).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels(POINTS.len())
        .x_desc("cores")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .y_desc("ns")
        .label_style((FONT, 14))
        .draw()?;
    for (at, subject) in SUBJECTS.iter().enumerate() {
        let colour = Palette99::pick(at).to_rgba();
        let predicted = POINTS.map(|cores| (cores as f64, measured.predict(at, cores).nanos));
        let line = LineSeries::new(predicted, colour.stroke_width(2));
        chart
            .draw_series(line)?
            .label(subject.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)));
        let points = [1.0, 2.0].into_iter().zip(measured.nanos[at]);
        chart.draw_series(points.map(|point| Circle::new(point, 5, colour.stroke_width(2))))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(FLOOR)
        .label_font((FONT, 14))
        .draw()?;
    area.present()?;
    Ok(())
}
