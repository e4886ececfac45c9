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
    for (lines, expected) in [
        ("0,1,2,3\n", "line 2: there are more or fewer"),
        ("0,1,2,3,1\n1,a,2,3,1\n", "line 3: the beginning"),
        ("0,1,-2,3,1\n", "line 2: the end"),
        ("0,2,1,3,1\n", "line 2: the buffer ends before"),
        ("0,2,2,3,1\n", "line 2: the buffer ends before"),
        ("0,1,2,99999999999999999999999,1\n", "line 2: the size"),
        ("0,1,2,3,0\n", "line 2: nothing is aligned"),
        ("0,1,2,3,many\n", "line 2: the alignment"),
        ("\n\n\0\u{fffd}\n", "line 4: there are more or fewer"),
    ] {
        let error = read(&format!("{header}{lines}")).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{lines:?}: {error}");
    }
    for (text, expected) in [
        ("", "line 1: there is no column id"),
        ("id,lower,upper\n", "line 1: there is no column size"),
        ("id,lower,upper,size,size\n", "line 1: a column is there twice"),
        ("start,size,end\n", "line 1: there is no column id"),
        ("id,end,start,size\n0,18446744073709551615,0,1\n", "line 2: the end"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
}

#[test]
fn a_line_without_end_is_not_read_into_memory() {
    let endless = io::BufReader::new(b"id,lower,upper,size\n".chain(io::repeat(b'1')));
    let error = parse(endless).unwrap_err().to_string();
    assert!(error.starts_with("line 2: the line is too long"), "{error}");
    assert!(error.len() < 200);
}
