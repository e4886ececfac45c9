use mempool_pools::arena::plan::Planner;
use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Result<Buffers, BuffersError> {
    parse(text.as_bytes())
}

#[test]
fn columns_come_in_any_order_and_others_are_passed_over() {
    let found =
        read("hint,size,upper,lower,id,alignment,offset\n-1,4,9,3,b2,8,12\r\n\n0,5,21,0,b5,1,0\n").unwrap();
    let expected = [
        Buffer { lower: 3, upper: 9, size_bytes: 4, align_bytes: 8 },
        Buffer { lower: 0, upper: 21, size_bytes: 5, align_bytes: 1 },
    ];
    assert_eq!(found.buffers, expected);
    assert_eq!(found.ids, ["b2", "b5"]);
    assert_eq!(found.lines, [2, 4]);
}

#[test]
fn a_column_called_end_names_the_last_time() {
    let found = read("buffer,start,end,size\n0,3,3,4\n").unwrap();
    assert_eq!(found.buffers, [Buffer::new(3, 4, 4)]);
}

#[test]
fn damaged_files_are_errors_that_name_the_line() {
    let header = "id,lower,upper,size,alignment\n";
    let most = u64::MAX;
    for (lines, expected) in [
        ("0,1,2,3\n".to_owned(), "line 2: there are 4 fields, and the header has 5 columns"),
        ("0,1,2,3,1,7\n".to_owned(), "line 2: there are 6 fields, and the header has 5 columns"),
        (
            "0,1,2,3,1\n1,a,2,3,1\n".to_owned(),
            "line 3: the beginning \"a\" is not a whole number: \"1,a,2,3,1\"",
        ),
        ("0,1,-2,3,1\n".to_owned(), "line 2: the end \"-2\" is negative"),
        ("0,1,2,4.0,1\n".to_owned(), "line 2: the size \"4.0\" is not a whole number"),
        ("0,1,1e3,4,1\n".to_owned(), "line 2: the end \"1e3\" is not a whole number"),
        ("0,1,2,nan,1\n".to_owned(), "line 2: the size \"nan\" is not a whole number"),
        ("0,1,,3,1\n".to_owned(), "line 2: the end \"\" is missing"),
        ("0,2,1,3,1\n".to_owned(), "line 2: the buffer begins at 2 and ends at 1"),
        ("0,2,2,3,1\n".to_owned(), "line 2: the buffer begins at 2 and ends at 2"),
        (
            format!("0,1,2,{most}0,1\n"),
            "line 2: the size \"184467440737095516150\" is more than 18446744073709551615",
        ),
        ("0,1,2,3,0\n".to_owned(), "line 2: nothing is aligned"),
        ("0,1,2,3,many\n".to_owned(), "line 2: the alignment \"many\" is not"),
        ("\n\n\0\n".to_owned(), "line 4: there are 1 fields"),
        (
            "b,1,2,3,1\n\na,1,2,3,1\nb,4,5,3,1\n".to_owned(),
            "line 5: the buffer \"b\" is there already, on line 2",
        ),
        (format!("0,1,2,3,1\n{}\n", "1".repeat(5000)), "line 3: the line is longer than 4096 bytes"),
    ] {
        let error = read(&format!("{header}{lines}")).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{lines:?}: {error}");
        assert!(error.len() < 200, "{error}");
    }
    for (text, expected) in [
        ("", "line 1: there is no column id"),
        ("id,lower,upper\n", "line 1: there is no column size"),
        ("id,lower,upper,size,Size\n", "line 1: the column \"size\" is there twice"),
        ("start,size,end\n", "line 1: there is no column id"),
        ("id,end,start,size\n0,18446744073709551615,0,1\n", "line 2: nothing lives on after the end 184"),
        ("id,end,start,size\n0,2,3,1\n", "line 2: the buffer begins at 3 and ends at 2"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
}

#[test]
fn bytes_that_are_no_text_are_an_error_that_names_the_line() {
    let error = parse(&b"id,lower,upper,size\n0,0,1,1\n\xff,0,1,1\n"[..]).unwrap_err().to_string();
    assert!(error.starts_with("line 3: the line is not UTF-8 from its byte 1 on"), "{error}");
}

#[test]
fn what_other_programs_add_is_passed_over() {
    let expected = read("id,lower,upper,size\na,0,3,4\nb,1,2,5\n").unwrap();
    for text in [
        "\u{feff}id,lower,upper,size\na,0,3,4\nb,1,2,5\n",
        "id,lower,upper,size\r\na,0,3,4\r\nb,1,2,5\r\n",
        "id,lower,upper,size,\na,0,3,4,\nb,1,2,5,\n",
        "id,lower,upper,size,,\na,0,3,4,,\nb,1,2,5,,\n",
        "id,lower,upper,size\na,0,3,4,\nb,1,2,5,,,\n",
        "id, lower ,upper, size\na, 0, 3 ,4\nb ,1,2,5",
        "ID,Lower,Upper,Size\na,0,3,4\nb,1,2,5\n",
        "lower,id,,size,upper\n0,a,x,4,3\n1,b,y,5,2\n",
    ] {
        assert_eq!(read(text).unwrap(), expected, "{text:?}");
    }
}

#[test]
fn a_line_without_end_is_not_read_into_memory() {
    let endless = io::BufReader::new(io::Read::chain(&b"id,lower,upper,size\n"[..], io::repeat(b'1')));
    let error = parse(endless).unwrap_err().to_string();
    assert!(error.starts_with("line 2: the line is longer"), "{error}");
    assert!(error.len() < 200);
}

proptest! {
    #[test]
    fn whatever_the_fields_are_they_are_buffers_or_an_error(
        header in prop_oneof![Just("id,lower,upper,size"), Just("size,id,end,start,alignment"), Just("id,lower"), Just("")],
        rows in prop::collection::vec(prop::collection::vec("[0-9]{1,2}|[a-z.\\-]|18446744073709551615", 3..6), 0..20),
        end in prop_oneof![Just("\n"), Just("\r\n"), Just(",\n"), Just("\n\n")],
    ) {
        let rows: String = rows.iter().map(|row| format!("{}{end}", row.join(","))).collect();
        if let Ok(found) = read(&format!("{header}{end}{rows}")) {
            prop_assert!(found.ids.len() == found.buffers.len() && found.lines.len() == found.buffers.len());
            prop_assert!(found.buffers.iter().all(|buffer| buffer.lower < buffer.upper && buffer.align_bytes > 0));
            // They can be planned, or it is told why not.
            let _ = crate::plan::plan(&found.buffers, &Planner::default());
        }
    }
}
