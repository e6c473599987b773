//! How contents differ.

/// Where a file is not what it should be.
pub fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!(
            "{} bytes, expected {}",
            found.len(),
            expected.len()
        ));
    }
    let at = (0..found.len()).find(|&at| found[at] != expected[at])?;
    Some(format!(
        "byte {at} is {:#x}, expected {:#x}",
        found[at], expected[at]
    ))
}
