use super::Event;

#[test]
fn every_kind_of_line_is_read() {
    let read = |text| Event::parse(text, 2).unwrap();
    assert_eq!(read("a,17,4096,3"), Event::Allocate { id: 17, size_bytes: 4096, stream: 3 });
    assert_eq!(read("f,17,0,3\r\n"), Event::Free { id: 17 });
    assert_eq!(read("c,17,,"), Event::FreeCompleted { id: 17 });
    assert_eq!(read("s,2,,"), Event::StepEnd { step: 2 });
}

#[test]
fn a_damaged_line_is_an_error_with_its_number() {
    for text in ["", "x,1,2,3", "a,1", "a,-1,2,3", "a,1,99999999999999999999999,0", "f,one,,"] {
        let error = Event::parse(text, 77).unwrap_err();
        assert_eq!(error.line, 77);
        assert!(error.to_string().starts_with("line 77: "), "{error}");
    }
    let long = "q".repeat(10_000);
    assert_eq!(Event::parse(&long, 1).unwrap_err().text.len(), 80);
}

#[test]
fn what_is_written_is_read_as_the_same() {
    for event in [
        Event::Allocate { id: 17, size_bytes: usize::MAX, stream: 3 },
        Event::Free { id: u64::MAX },
        Event::FreeCompleted { id: 0 },
        Event::StepEnd { step: 2 },
    ] {
        let line = event.to_string();
        assert_eq!(line.matches(',').count(), 3, "{line}");
        assert_eq!(Event::parse(&line, 2).unwrap(), event);
    }
}
