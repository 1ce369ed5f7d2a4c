//! Throughput over time as SVG, with a mark for every fault.

use std::fmt::Write as _;

use super::load::Call;
use crate::bench::chart::{GET, PUT, Panel, escape};

/// Width of a slot of the series, in seconds.
const SLOT_S: f64 = 0.1;
const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 420.0;

/// Keys answered per second, in slots. The keys of a call count where it ended.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and slots far below 2^53"
)]
fn series(calls: &[Call], (chains, slots): (usize, usize), writes: bool) -> Vec<f64> {
    let mut series = vec![0.0; slots];
    for call in calls.iter().filter(|call| call.writes == writes && call.is_complete) {
        let slot = (call.end.as_secs_f64() / SLOT_S) as usize;
        series[slot.min(slots - 1)] += chains as f64 / SLOT_S;
    }
    series
}

/// The chart of a run.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "drawn with one digit"
)]
pub(super) fn svg(title: &str, calls: &[Call], (chains, marks): (usize, &[f64])) -> String {
    let end = calls.iter().map(|call| call.end.as_secs_f64()).fold(1.0, f64::max);
    let slots = (end / SLOT_S).ceil() as usize;
    let lines = [(false, "reads", GET), (true, "writes", PUT)]
        .map(|(writes, name, colour)| (series(calls, (chains, slots), writes), name, colour));
    let peak = lines.iter().flat_map(|line| &line.0).copied().fold(1.0, f64::max);
    let panel =
        Panel { left: 70.0, width: WIDTH - 100.0, y_min: 0.0, y_max: peak * 1.1, log: false };
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' \
         font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n\
         <text x='70' y='26' font-size='15'>{}</text>\n",
        escape(title)
    );
    let step = 10f64.powf(peak.log10().floor());
    let labels: Vec<f64> =
        (0..=10).map(|i| step * f64::from(i)).take_while(|v| *v <= peak * 1.1).collect();
    panel.frame(&mut svg, "keys/s over time, 0.1 s slots; lines mark the faults", &labels);
    for mark in marks {
        let x = panel.x(mark / end);
        let _ = writeln!(
            svg,
            "<line x1='{x:.1}' x2='{x:.1}' y1='70' y2='350' stroke='#999' stroke-dasharray='3 3'/>"
        );
    }
    for (index, (series, name, colour)) in lines.iter().enumerate() {
        let points: Vec<(f64, f64)> = series
            .iter()
            .enumerate()
            .map(|(slot, rate)| ((slot as f64 + 0.5) * SLOT_S / end, *rate))
            .collect();
        panel.line(&mut svg, &points, colour);
        let x = 70.0 + index as f64 * 90.0;
        let _ = writeln!(
            svg,
            "<rect x='{x}' y='388' width='14' height='4' fill='{colour}'/>\
             <text x='{}' y='396'>{name}</text>",
            x + 20.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x='{}' y='368' text-anchor='end' fill='#555'>{end:.1} s</text>\n</svg>",
        panel.x(1.0)
    );
    svg
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Call, svg};

    #[test]
    fn a_chart_is_drawn_from_little_and_from_nothing() {
        let call = Call {
            caller: 0,
            writes: true,
            start: Duration::ZERO,
            end: Duration::from_millis(250),
            is_complete: true,
        };
        for calls in [&[][..], &[call]] {
            let svg = svg("kill & wait", calls, (8, &[0.1]));
            assert!(svg.contains("kill &amp; wait"));
            assert!(svg.ends_with("</svg>\n"));
            assert!(!svg.contains("NaN"), "{svg}");
            assert!(!svg.contains("inf"), "{svg}");
        }
    }
}
