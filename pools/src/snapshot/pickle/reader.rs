//! Reading pickles of plain values: lists, tuples, dictionaries, texts, numbers.
//!
//! A pickle is a program for a machine with a stack, and this runs the part of it that builds such values. What asks for a
//! class is refused; nothing is ever built from its classes. Values lie in one table and name each other by number, so a
//! value that contains itself is no leak, and nesting however deep ends in no recursion. Each instruction adds one value at
//! most: memory is at most some fifty times what the pickle has.

use std::collections::HashMap;

/// A value, or where it stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::snapshot) enum Value {
    None,
    Flag(bool),
    Int(i64),
    Float(f64),
    /// By its place in the tree.
    Node(u32),
}

/// A value of more than a number.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    Text(Box<str>),
    /// A list, a tuple or a set.
    List(Vec<Value>),
    /// Keys and values in order; of keys that occur more than once the last counts.
    Dict(Vec<(Value, Value)>),
}

/// Values that were read.
#[derive(Debug, Default)]
pub(in crate::snapshot) struct Tree {
    nodes: Vec<Node>,
    root: Option<Value>,
    /// Bytes that it was read from.
    source_bytes: usize,
}

/// Why something is no pickle of plain values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::snapshot) enum Problem {
    #[error("it ends within an instruction, at byte {0}")]
    Ends(usize),
    #[error("byte {at}: it asks for a class or function ({what}), and only plain values are read")]
    Class { at: usize, what: &'static str },
    #[error("byte {at}: instruction {code:#04x} is not one of pickles of plain values")]
    Instruction { at: usize, code: u8 },
    #[error("byte {0}: the instruction finds no value to work on")]
    Missing(usize),
    #[error("byte {0}: the value is of another kind than the instruction needs")]
    Kind(usize),
    #[error("byte {at}: value {number} is referred to, and was not remembered")]
    Unknown { at: usize, number: u32 },
    #[error("byte {0}: a number of more than 64 bits")]
    Number(usize),
    #[error("it has more than 4294967295 values")]
    Large,
}

/// The machine.
struct Machine<'a> {
    source: &'a [u8],
    at: usize,
    /// Where the instruction in progress began.
    began: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    /// Sparse: a pickle may number what it remembers as it likes.
    remembered: HashMap<u32, Value>,
    tree: Tree,
}

impl Machine<'_> {
    fn take(&mut self, len: usize) -> Result<&[u8], Problem> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.source.len());
        let end = end.ok_or(Problem::Ends(self.began))?;
        let taken = &self.source[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Problem> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number<const LEN: usize>(&mut self) -> Result<u64, Problem> {
        let mut bytes = [0; 8];
        bytes[..LEN].copy_from_slice(self.take(LEN)?);
        Ok(u64::from_le_bytes(bytes))
    }

    fn reference(&mut self, is_long: bool) -> Result<u32, Problem> {
        if is_long { self.number::<4>().map(|number| number as u32) } else { self.byte().map(u32::from) }
    }

    fn pop(&mut self) -> Result<Value, Problem> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(Problem::Missing(self.began));
        }
        self.stack.pop().ok_or(Problem::Missing(self.began))
    }

    /// Everything since the last mark, which ends.
    fn pop_marked(&mut self) -> Result<Vec<Value>, Problem> {
        let mark = self.marks.pop().ok_or(Problem::Missing(self.began))?;
        Ok(self.stack.split_off(mark))
    }

    fn last(&self) -> Result<Value, Problem> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let last = self.stack.last().filter(|_| self.stack.len() > floor);
        last.copied().ok_or(Problem::Missing(self.began))
    }

    fn push(&mut self, node: Node) -> Result<(), Problem> {
        let number = u32::try_from(self.tree.nodes.len()).map_err(|_| Problem::Large)?;
        self.tree.nodes.push(node);
        self.stack.push(Value::Node(number));
        Ok(())
    }

    fn text(&mut self, len: u64) -> Result<(), Problem> {
        let began = self.began;
        let len = usize::try_from(len).map_err(|_| Problem::Ends(began))?;
        let text = self.take(len)?;
        // Python writes lone surrogates as they are, for example in names of files.
        let text = String::from_utf8_lossy(text).into_owned();
        self.push(Node::Text(text.into()))
    }

    /// A signed number of as many bytes.
    fn long(&mut self, len: u64) -> Result<(), Problem> {
        let began = self.began;
        let len = usize::try_from(len).map_err(|_| Problem::Ends(began))?;
        let bytes = self.take(len)?;
        let sign = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let fill = if sign { 0xff } else { 0 };
        let mut whole = [fill; 8];
        let (low, high) = bytes.split_at(len.min(8));
        whole[..low.len()].copy_from_slice(low);
        let number = i64::from_le_bytes(whole);
        if high.iter().any(|&byte| byte != fill) || (number < 0) != sign {
            return Err(Problem::Number(began));
        }
        self.stack.push(Value::Int(number));
        Ok(())
    }

    /// The list or dictionary that is on top, for more to be put in.
    fn top(&mut self) -> Result<&mut Node, Problem> {
        let Value::Node(number) = self.last()? else { return Err(Problem::Kind(self.began)) };
        self.tree.nodes.get_mut(number as usize).ok_or(Problem::Kind(self.began))
    }

    fn append(&mut self, values: Vec<Value>) -> Result<(), Problem> {
        let began = self.began;
        match self.top()? {
            Node::List(list) => list.extend(values),
            _ => return Err(Problem::Kind(began)),
        }
        Ok(())
    }

    fn set(&mut self, values: &[Value]) -> Result<(), Problem> {
        let began = self.began;
        let (pairs, rest) = values.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(Problem::Missing(began));
        }
        match self.top()? {
            Node::Dict(fields) => fields.extend(pairs.iter().map(|&[key, value]| (key, value))),
            _ => return Err(Problem::Kind(began)),
        }
        Ok(())
    }

    fn tuple(&mut self, len: usize) -> Result<(), Problem> {
        let mut values = (0..len).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        values.reverse();
        self.push(Node::List(values))
    }

    fn class<T>(&self, what: &'static str) -> Result<T, Problem> {
        Err(Problem::Class { at: self.began, what })
    }

    /// Runs one instruction; whether it was the last.
    fn step(&mut self) -> Result<bool, Problem> {
        self.began = self.at;
        let code = self.byte()?;
        match code {
            b'.' => {
                self.tree.root = Some(self.pop()?);
                return Ok(true);
            }
            0x80 => drop(self.byte()?),
            // Frames tell readers how much to read at once.
            0x95 => drop(self.number::<8>()?),
            b'N' => self.stack.push(Value::None),
            0x88 | 0x89 => self.stack.push(Value::Flag(code == 0x88)),
            b'K' => {
                let number = self.byte()?;
                self.stack.push(Value::Int(number.into()));
            }
            b'M' => {
                let number = self.number::<2>()?;
                self.stack.push(Value::Int(number as i64));
            }
            b'J' => {
                let number = self.number::<4>()?;
                self.stack.push(Value::Int((number as u32 as i32).into()));
            }
            0x8a => {
                let len = self.byte()?;
                self.long(len.into())?;
            }
            0x8b => {
                let len = self.number::<4>()?;
                self.long(len)?;
            }
            b'G' => {
                let bits = self.number::<8>()?;
                self.stack.push(Value::Float(f64::from_bits(bits.swap_bytes())));
            }
            0x8c => {
                let len = self.byte()?;
                self.text(len.into())?;
            }
            // Texts of Python 2 among them: `U` and `T`.
            b'U' => {
                let len = self.byte()?;
                self.text(len.into())?;
            }
            b'X' | b'T' => {
                let len = self.number::<4>()?;
                self.text(len)?;
            }
            0x8d => {
                let len = self.number::<8>()?;
                self.text(len)?;
            }
            b']' | b')' => self.push(Node::List(Vec::new()))?,
            b'}' => self.push(Node::Dict(Vec::new()))?,
            b'(' => self.marks.push(self.stack.len()),
            b'l' | b't' => {
                let values = self.pop_marked()?;
                self.push(Node::List(values))?;
            }
            b'd' => {
                let values = self.pop_marked()?;
                self.push(Node::Dict(Vec::new()))?;
                self.set(&values)?;
            }
            0x85..=0x87 => self.tuple(usize::from(code) - 0x84)?,
            b'a' => {
                let value = self.pop()?;
                self.append(vec![value])?;
            }
            b'e' => {
                let values = self.pop_marked()?;
                self.append(values)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(&[key, value])?;
            }
            b'u' => {
                let values = self.pop_marked()?;
                self.set(&values)?;
            }
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_marked()?),
            b'2' => {
                let last = self.last()?;
                self.stack.push(last);
            }
            b'q' | b'r' => {
                let number = self.reference(code == b'r')?;
                let last = self.last()?;
                self.remembered.insert(number, last);
            }
            0x94 => {
                let number = self.remembered.len() as u32;
                let last = self.last()?;
                self.remembered.insert(number, last);
            }
            b'h' | b'j' => {
                let number = self.reference(code == b'j')?;
                let known = self.remembered.get(&number).copied();
                self.stack.push(known.ok_or(Problem::Unknown { at: self.began, number })?);
            }
            b'c' | 0x93 => return self.class("GLOBAL"),
            b'R' => return self.class("REDUCE"),
            b'b' => return self.class("BUILD"),
            b'i' | b'o' => return self.class("INST"),
            0x81 | 0x92 => return self.class("NEWOBJ"),
            0x82..=0x84 => return self.class("EXT"),
            b'P' | b'Q' => return self.class("PERSID"),
            code => return Err(Problem::Instruction { at: self.began, code }),
        }
        Ok(false)
    }
}

impl Tree {
    /// Reads a pickle.
    pub(in crate::snapshot) fn read(source: &[u8]) -> Result<Self, Problem> {
        let mut machine = Machine {
            source,
            at: 0,
            began: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            remembered: HashMap::new(),
            tree: Self { source_bytes: source.len(), ..Self::default() },
        };
        while !machine.step()? {}
        Ok(machine.tree)
    }

    /// The tree of a document of JSON that was `source_bytes` long.
    pub(in crate::snapshot) fn of_json(
        value: serde_json::Value,
        source_bytes: usize,
    ) -> Result<Self, Problem> {
        let mut tree = Self { source_bytes, ..Self::default() };
        tree.root = Some(tree.add_json(value)?);
        Ok(tree)
    }

    /// serde_json lets nothing be nested deeper than 128.
    fn add_json(&mut self, value: serde_json::Value) -> Result<Value, Problem> {
        let node = match value {
            serde_json::Value::Null => return Ok(Value::None),
            serde_json::Value::Bool(flag) => return Ok(Value::Flag(flag)),
            serde_json::Value::Number(number) => {
                return Ok(match number.as_i64() {
                    Some(int) => Value::Int(int),
                    None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
                });
            }
            serde_json::Value::String(text) => Node::Text(text.into()),
            serde_json::Value::Array(values) => {
                Node::List(values.into_iter().map(|value| self.add_json(value)).collect::<Result<_, _>>()?)
            }
            serde_json::Value::Object(fields) => {
                let mut list = Vec::with_capacity(fields.len());
                for (name, value) in fields {
                    let name = self.add_json(serde_json::Value::String(name))?;
                    list.push((name, self.add_json(value)?));
                }
                Node::Dict(list)
            }
        };
        let number = u32::try_from(self.nodes.len()).map_err(|_| Problem::Large)?;
        self.nodes.push(node);
        Ok(Value::Node(number))
    }

    /// What the pickle is.
    pub(in crate::snapshot) fn root(&self) -> Value {
        self.root.unwrap_or(Value::None)
    }

    /// Bytes that it was read from.
    pub(in crate::snapshot) fn source_bytes(&self) -> usize {
        self.source_bytes
    }

    fn node(&self, value: Value) -> Option<&Node> {
        match value {
            Value::Node(number) => self.nodes.get(number as usize),
            _ => None,
        }
    }

    /// A text.
    pub(in crate::snapshot) fn text(&self, value: Value) -> Option<&str> {
        match self.node(value)? {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The elements of a list or tuple.
    pub(in crate::snapshot) fn list(&self, value: Value) -> Option<&[Value]> {
        match self.node(value)? {
            Node::List(list) => Some(list),
            _ => None,
        }
    }

    /// The fields of a dictionary.
    pub(in crate::snapshot) fn dict(&self, value: Value) -> Option<&[(Value, Value)]> {
        match self.node(value)? {
            Node::Dict(fields) => Some(fields),
            _ => None,
        }
    }
}
