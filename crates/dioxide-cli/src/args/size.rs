//! Sizes with suffixes.

/// Bytes from `4096`, `4k`, `4K`, `4KiB`, `1M`, `2g`, `1T` (powers of 1024) or `4kB`, `1MB` (powers of 1000).
pub fn parse_size(word: &str) -> Result<u64, String> {
    let digits = word
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(word.len());
    let (number, suffix) = word.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{word}' is not a size, such as 4096, 64k or 1GiB"))?;
    let unit = unit(suffix).ok_or_else(|| {
        format!("'{suffix}' is no unit; there are k, M, G, T, P, also with iB or B")
    })?;
    number
        .checked_mul(unit)
        .ok_or_else(|| format!("'{word}' is more than 2^64 bytes"))
}

fn unit(suffix: &str) -> Option<u64> {
    let (letter, rest) = match suffix.chars().next() {
        None => return Some(1),
        Some(letter) => (letter.to_ascii_lowercase(), &suffix[letter.len_utf8()..]),
    };
    if letter == 'b' && rest.is_empty() {
        return Some(1);
    }
    let power = "kmgtp".find(letter)? as u32 + 1;
    match rest.to_ascii_lowercase().as_str() {
        "" | "i" | "ib" => Some(1024u64.pow(power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_with_each_kind_of_suffix_is_scaled() {
        for (word, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("4kB", 4000),
            ("1M", 1 << 20),
            ("2g", 2 << 30),
            ("16TiB", 16 << 40),
        ] {
            assert_eq!(parse_size(word), Ok(bytes), "{word}");
        }
    }

    #[test]
    fn size_that_makes_no_sense_is_refused() {
        for word in ["", "k", "-1", "4q", "4kk", "1.5M", "99999999999G", "4é"] {
            assert!(parse_size(word).is_err(), "{word}");
        }
    }
}
