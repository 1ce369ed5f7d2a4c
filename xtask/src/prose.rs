//! Prose (STYLE, "Plain English"): at most 100 columns, and nouns in place of headless relatives.

/// Columns of a line of a comment or a document.
const COLUMNS_MAX: usize = 100;
/// Words in whose place a noun belongs.
const WORDS: [&str; 6] = ["who", "whom", "whose", "whoever", "what", "whatever"];

/// The text of a Rust comment line; `None` for other lines.
fn comment(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("//")
}

/// Comment lines of the Rust source `text` with one of the words.
pub(crate) fn words(text: &str) -> usize {
    text.lines().filter_map(comment).filter(|line| has_word(line)).count()
}

fn has_word(line: &str) -> bool {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.map(str::to_ascii_lowercase).any(|word| WORDS.contains(&word.as_str()))
}

/// Comment lines of the Rust source `text` that are too long. Tables and links cannot be wrapped.
pub(crate) fn long_comments(text: &str) -> usize {
    text.lines().filter(|line| comment(line).is_some() && is_long(line)).count()
}

/// Numbers of the lines of a Markdown document that are too long, outside of code blocks.
pub(crate) fn long_lines(text: &str) -> impl Iterator<Item = usize> + '_ {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence && is_long(line)).then_some(index + 1)
    })
}

fn is_long(line: &str) -> bool {
    let text = line.trim_start().trim_start_matches(['/', '!', ' ']);
    let is_table = text.starts_with('|');
    let is_link = text.trim_start_matches(['-', ' ']).starts_with('[') && text.ends_with(')');
    let longest = text.split_whitespace().map(|word| word.chars().count()).max().unwrap_or(0);
    // One word, or one link, that fills most of the line.
    let is_word = longest > COLUMNS_MAX / 2;
    line.chars().count() > COLUMNS_MAX && !is_table && !is_link && !is_word
}

#[cfg(test)]
mod tests {
    use super::{long_comments, long_lines, words};

    #[test]
    fn comments_are_counted_by_line() {
        let text = "// What is it, and whose?\nlet what = 1;\n/// Whatever comes.\n// whats_new\n";
        assert_eq!(words(text), 2);
    }

    #[test]
    fn long_prose_is_a_fault_and_code_tables_and_links_are_not() {
        let long = "word ".repeat(21);
        let source =
            format!("// {long}\nlet x = \"{long}\";\n    /// | {long} |\n// {}\n", "x".repeat(120));
        assert_eq!(long_comments(&source), 1);
        let page = format!("{long}\n```\n{long}\n```\n| {long} |\n- {long}\n");
        assert_eq!(long_lines(&page).collect::<Vec<_>>(), [1, 6]);
    }
}
