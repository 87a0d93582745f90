//! TOML as a tree of values.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{
    MAX_DEPTH, Names, Node, Reader, Span, Table, TableBuilder, Text, Value, Words, set_twice,
    too_deep,
};

const WORDS: Words = Words {
    a_table: "a table",
    tables: "tables",
};

impl<'t> Reader<'t> {
    /// Parses TOML. Returns no table if the text is not TOML: what is parsed of it may be
    /// wrong.
    pub(crate) fn toml(text: &'t str) -> (Self, Option<Table<'t>>) {
        let mut reader = Self::new(text, WORDS);
        let (file, errors) = DeTable::parse_recoverable(text);
        let mut is_toml = true;
        for error in errors {
            let span = error.span().unwrap_or_default();
            if error.message() == "duplicate key" {
                let name = text.get(span.clone()).unwrap_or_default();
                reader.refuse(span.into(), set_twice(name));
            } else {
                is_toml = false;
                reader.refuse(span.into(), error.message());
            }
        }
        let before = reader.errors.len();
        let table = reader.toml_table(file.into_inner(), 1);
        is_toml &= reader.errors.len() == before;
        (reader, is_toml.then_some(table))
    }

    fn toml_table(&mut self, table: DeTable<'t>, depth: usize) -> Table<'t> {
        // The parser has refused names that are set twice.
        let mut builder = TableBuilder::new(Names::Exact);
        let mut entries: Vec<(Spanned<Cow<'_, str>>, Spanned<DeValue<'_>>)> =
            table.into_iter().collect();
        // The parser orders them by name.
        entries.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in entries {
            let name = Text {
                span: name.span().into(),
                text: name.into_inner(),
            };
            let value = self.toml_value(value, depth);
            builder.add(self, name, value);
        }
        builder.table
    }

    fn toml_value(&mut self, value: Spanned<DeValue<'t>>, depth: usize) -> Value<'t> {
        let span: Span = value.span().into();
        let node = match value.into_inner() {
            DeValue::String(text) => Node::Text(text),
            DeValue::Integer(integer) => {
                Node::Integer(i128::from_str_radix(integer.as_str(), integer.radix()).ok())
            }
            DeValue::Float(_) => Node::Float,
            DeValue::Boolean(boolean) => Node::Boolean(boolean),
            DeValue::Datetime(_) => Node::Date,
            DeValue::Array(_) | DeValue::Table(_) if depth == MAX_DEPTH => {
                self.refuse(span, too_deep());
                Node::Null
            }
            DeValue::Array(values) => {
                let values = values.into_iter();
                Node::Array(
                    values
                        .map(|value| self.toml_value(value, depth + 1))
                        .collect(),
                )
            }
            DeValue::Table(table) => Node::Table(self.toml_table(table, depth + 1)),
        };
        Value { node, span }
    }
}
