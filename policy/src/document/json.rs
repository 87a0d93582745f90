//! JSON with comments as a tree of values.

use core::ops::Range as Bytes;
use std::borrow::Cow;

use jsonc_parser::ast;
use jsonc_parser::common::{Range, Ranged};
use jsonc_parser::errors::ParseErrorKind;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::{
    MAX_DEPTH, Names, Node, Reader, Span, Table, TableBuilder, Text, Value, Words, too_deep,
    without_mark,
};

const WORDS: Words = Words {
    a_table: "an object",
    tables: "objects",
};

/// JSON as the standard has it, with comments and trailing commas.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_extended_string_escapes: false,
    allow_non_finite_numbers: false,
};

impl<'t> Reader<'t> {
    /// Parses JSON with comments and trailing commas. Returns no table if the text is not an object
    /// in JSON.
    pub(crate) fn json(text: &'t str, names: Names) -> (Self, Option<Table<'t>>) {
        let mut reader = Self::new(text, WORDS);
        let table = reader.parse_json(0..text.len(), names);
        (reader, table)
    }

    /// Parses several files as pieces of one text, which has them in their order, a line end apart.
    /// Returns the table of each, as [`json`](Self::json) does.
    pub(crate) fn json_files(
        text: &'t str,
        files: &[(&str, &str)],
        names: Names,
    ) -> (Self, Vec<Option<Table<'t>>>) {
        let mut reader = Self::new(text, WORDS);
        let mut start = 0;
        let tables = files.iter().map(|(name, file)| {
            let piece = start..start + file.len();
            reader.files.push((start, (*name).into()));
            start = piece.end + 1;
            reader.parse_json(piece, names)
        });
        let tables = tables.collect();
        (reader, tables)
    }

    fn parse_json(&mut self, piece: Bytes<usize>, names: Names) -> Option<Table<'t>> {
        let text: &'t str = self.text;
        let json = without_mark(&text[piece.clone()]);
        let mut builder = Builder {
            reader: self,
            start: piece.end - json.len(),
            names,
            is_json: true,
        };
        let parsed = parse_to_ast(json, &CollectOptions::default(), &OPTIONS);
        let table = match parsed.map(|parsed| parsed.value) {
            Ok(Some(ast::Value::Object(object))) => Some(builder.table(object, 1)),
            Ok(Some(other)) => {
                let value = builder.value(other, 1);
                let expected = WORDS.a_table;
                builder.reader.expected(&value, "the file", expected);
                None
            }
            Ok(None) => {
                let end = Span::from(piece.end..piece.end);
                let message = "the file is empty: expected an object";
                builder.reader.refuse(end, message);
                None
            }
            Err(error) => {
                let mut message = match error.kind() {
                    ParseErrorKind::ExpectedStringObjectProperty => {
                        "expected a name in double quotes".into()
                    }
                    ParseErrorKind::UnexpectedTokenInObject => {
                        "expected a name in double quotes, or `}`".into()
                    }
                    ParseErrorKind::MultipleRootJsonValues => "expected the end of the file".into(),
                    kind => kind.to_string(),
                };
                if let Some(first) = message.get_mut(..1) {
                    first.make_ascii_lowercase();
                }
                let span = builder.span(error.range());
                builder.reader.refuse(span, message);
                None
            }
        };
        table.filter(|_| builder.is_json)
    }
}

struct Builder<'r, 't> {
    reader: &'r mut Reader<'t>,
    /// Where the text begins that the parser sees: after a mark at the beginning of the file.
    start: usize,
    names: Names,
    /// Whether the tree is that of the text. Otherwise an error is noted.
    is_json: bool,
}

impl<'t> Builder<'_, 't> {
    fn span(&self, range: Range) -> Span {
        Span {
            start: self.start + range.start,
            end: self.start + range.end,
        }
    }

    fn refuse(&mut self, span: Span, message: impl Into<String>) {
        self.reader.refuse(span, message);
        self.is_json = false;
    }

    fn table(&mut self, object: ast::Object<'t>, depth: usize) -> Table<'t> {
        let mut table = TableBuilder::new(self.names);
        for property in object.properties {
            let name = Text {
                span: self.span(property.name.range()),
                text: match property.name {
                    ast::ObjectPropName::String(name) => self.text(name),
                    ast::ObjectPropName::Word(name) => name.value.into(),
                },
            };
            let value = self.value(property.value, depth);
            table.add(self.reader, name, value);
        }
        table.table
    }

    fn value(&mut self, value: ast::Value<'t>, depth: usize) -> Value<'t> {
        let span = self.span(value.range());
        let node = match value {
            ast::Value::NullKeyword(_) => Node::Null,
            ast::Value::BooleanLit(boolean) => Node::Boolean(boolean.value),
            ast::Value::NumberLit(number) if number.value.contains(['.', 'e', 'E']) => Node::Float,
            ast::Value::NumberLit(number) => Node::Integer(number.value.parse().ok()),
            ast::Value::StringLit(text) => Node::Text(self.text(text)),
            ast::Value::Array(_) | ast::Value::Object(_) if depth == MAX_DEPTH => {
                self.refuse(span, too_deep());
                Node::Null
            }
            ast::Value::Array(array) => {
                let values = array.elements.into_iter();
                Node::Array(values.map(|value| self.value(value, depth + 1)).collect())
            }
            ast::Value::Object(object) => Node::Table(self.table(object, depth + 1)),
        };
        Value { node, span }
    }

    /// The text of a string. The parser lets control characters pass, which JSON does not allow.
    fn text(&mut self, text: ast::StringLit<'t>) -> Cow<'t, str> {
        let span = self.span(text.range);
        let mut bytes = self.reader.text[span.start..span.end].bytes();
        if let Some(at) = bytes.position(|byte| byte < b' ') {
            let at = span.start + at;
            let problem = "a string contains a control character: write an escape, such as \\n";
            self.refuse((at..at + 1).into(), problem);
        }
        text.value
    }
}
