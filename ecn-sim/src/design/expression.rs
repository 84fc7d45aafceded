//! Expressions in r in the usual notation: `r/(1 + r)`, `0.7*r`, `max(r/2, r - 0.1)`.
//!
//! Precedence is the usual one: `-r^2` is -(r²) and `2^3^2` is 2^9. The parser is our own because of those two: exmex
//! 0.21 reads them as r² and 64, and supports neither `1e-3` nor functions in the second argument of `min`; evalexpr is
//! AGPL; meval and fasteval are unmaintained.

/// Description of valid expressions, for messages.
pub const ALLOWED: &str = "r, numbers, pi, e, + - * / ^ ( ), abs, cbrt, exp, ln, log2, log10, \
                           sqrt, tanh of one value, min, max of two";

/// Why a text is not an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} at column {column}; expected {ALLOWED}")]
pub struct ExpressionError {
    reason: String,
    column: usize,
}

#[derive(Debug, Clone)]
enum Node {
    Number(f64),
    R,
    Of(fn(f64) -> f64, Box<Node>),
    Of2(fn(f64, f64) -> f64, Box<Node>, Box<Node>),
}

impl Node {
    fn at(&self, r: f64) -> f64 {
        match self {
            Self::Number(number) => *number,
            Self::R => r,
            Self::Of(f, a) => f(a.at(r)),
            Self::Of2(f, a, b) => f(a.at(r), b.at(r)),
        }
    }
}

/// A function of r.
#[derive(Debug, Clone)]
pub struct Expression {
    text: String,
    root: Node,
}

impl Expression {
    /// Maximum length of the text, in bytes, which limits the recursion of parser and evaluation.
    pub const LONGEST: usize = 500;

    /// Parses an expression.
    ///
    /// # Errors
    ///
    /// The text is not an expression; the error contains the position, the problem, and what is expected.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let text = text.trim();
        let mut parser = Parser { text, at: 0 };
        if text.len() > Self::LONGEST {
            return Err(parser.error(format!("longer than {} bytes", Self::LONGEST)));
        }
        let root = parser.sum()?;
        match parser.peek() {
            None => Ok(Self {
                text: text.to_owned(),
                root,
            }),
            Some(found) => Err(parser.error(format!("unexpected `{found}`"))),
        }
    }

    /// The value at r; not finite if undefined.
    pub fn at(&self, r: f64) -> f64 {
        self.root.at(r)
    }

    /// The text as given.
    pub fn text(&self) -> &str {
        &self.text
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

type Parsed = Result<Node, ExpressionError>;

impl Parser<'_> {
    fn error(&self, reason: String) -> ExpressionError {
        let before = self.text.get(..self.at).unwrap_or_default();
        ExpressionError {
            reason,
            column: before.chars().count() + 1,
        }
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// The next character other than a space.
    fn peek(&mut self) -> Option<char> {
        self.at = self.text.len() - self.rest().trim_start().len();
        self.rest().chars().next()
    }

    /// Consumes the next character if it is one of `symbols`.
    fn take(&mut self, symbols: &[char]) -> Option<char> {
        let found = self.peek().filter(|c| symbols.contains(c))?;
        self.at += found.len_utf8();
        Some(found)
    }

    fn expect(&mut self, symbol: char) -> Result<(), ExpressionError> {
        if self.take(&[symbol]).is_some() {
            return Ok(());
        }
        let found = self
            .peek()
            .map_or("the end".to_owned(), |c| format!("`{c}`"));
        Err(self.error(format!("`{symbol}` expected, not {found}")))
    }

    fn sum(&mut self) -> Parsed {
        let mut left = self.product()?;
        while let Some(sign) = self.take(&['+', '-']) {
            let f = if sign == '+' {
                |a, b| a + b
            } else {
                |a: f64, b: f64| a - b
            };
            left = Node::Of2(f, left.into(), self.product()?.into());
        }
        Ok(left)
    }

    fn product(&mut self) -> Parsed {
        let mut left = self.signed()?;
        while let Some(sign) = self.take(&['*', '/']) {
            let f = if sign == '*' {
                |a, b| a * b
            } else {
                |a: f64, b: f64| a / b
            };
            left = Node::Of2(f, left.into(), self.signed()?.into());
        }
        Ok(left)
    }

    fn signed(&mut self) -> Parsed {
        match self.take(&['+', '-']) {
            Some('-') => Ok(Node::Of(|a| -a, self.signed()?.into())),
            Some(_) => self.signed(),
            None => self.power(),
        }
    }

    fn power(&mut self) -> Parsed {
        let base = self.atom()?;
        if self.take(&['^']).is_none() {
            return Ok(base);
        }
        Ok(Node::Of2(f64::powf, base.into(), self.signed()?.into()))
    }

    fn atom(&mut self) -> Parsed {
        match self.peek() {
            None => Err(self.error("a value is missing".to_owned())),
            Some('(') => {
                self.at += 1;
                let inner = self.sum()?;
                self.expect(')')?;
                Ok(inner)
            }
            Some(c) if c.is_ascii_digit() || c == '.' => self.number(),
            Some(c) if c.is_alphabetic() => self.name(),
            Some(c) => Err(self.error(format!("unexpected `{c}`"))),
        }
    }

    fn number(&mut self) -> Parsed {
        let mut last = ' ';
        let length = self
            .rest()
            .find(|c: char| {
                let exponent = c == 'e' || c == 'E' || matches!((last, c), ('e' | 'E', '+' | '-'));
                last = c;
                !(c.is_ascii_digit() || c == '.' || exponent)
            })
            .unwrap_or(self.rest().len());
        let text = &self.rest()[..length];
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => {
                self.at += length;
                Ok(Node::Number(number))
            }
            _ => Err(self.error(format!("`{text}` is not a number"))),
        }
    }

    fn name(&mut self) -> Parsed {
        let length = self
            .rest()
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(self.rest().len());
        let name = self.rest()[..length].to_owned();
        let one: fn(f64) -> f64 = match name.as_str() {
            "r" | "pi" | "e" => {
                self.at += length;
                return Ok(match name.as_str() {
                    "r" => Node::R,
                    "pi" => Node::Number(std::f64::consts::PI),
                    _ => Node::Number(std::f64::consts::E),
                });
            }
            "min" | "max" => {
                self.at += length;
                self.expect('(')?;
                let left = self.sum()?;
                self.expect(',')?;
                let right = self.sum()?;
                self.expect(')')?;
                let f = if name == "min" { f64::min } else { f64::max };
                return Ok(Node::Of2(f, left.into(), right.into()));
            }
            "abs" => f64::abs,
            "cbrt" => f64::cbrt,
            "exp" => f64::exp,
            "ln" => f64::ln,
            "log2" => f64::log2,
            "log10" => f64::log10,
            "sqrt" => f64::sqrt,
            "tanh" => f64::tanh,
            _ => return Err(self.error(format!("unknown name `{name}`"))),
        };
        self.at += length;
        self.expect('(')?;
        let inner = self.sum()?;
        self.expect(')')?;
        Ok(Node::Of(one, inner.into()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn precedence_is_that_of_mathematics() {
        for (text, expected) in [
            ("-r^2", -4.0),
            ("2^3^2", 512.0),
            ("2^-r", 0.25),
            ("exp(-r^2)", (-4.0_f64).exp()),
            ("8/2/2 - 2 - 1", -1.0),
            ("r*-2", -4.0),
            ("1e-3*r + .5E+1", 5.002),
            ("min(r/2, max(r - 1, 0.1))", 1.0),
            (" ( r ) /(1+sqrt(r)) ", 2.0 / (1.0 + 2.0_f64.sqrt())),
            ("e*pi", std::f64::consts::E * std::f64::consts::PI),
        ] {
            let value = Expression::parse(text).unwrap().at(2.0);
            assert!((value - expected).abs() < 1e-12, "{text}: {value}");
        }
    }

    #[test]
    fn bad_texts_are_refused_where_they_are_bad() {
        for (text, expected) in [
            ("", "a value is missing at column 1"),
            ("r/", "a value is missing at column 3"),
            ("(r", "`)` expected, not the end at column 3"),
            ("r)", "unexpected `)` at column 2"),
            ("2 r", "unexpected `r` at column 3"),
            ("r/(1+x)", "unknown name `x` at column 6"),
            ("r*1.2.3", "`1.2.3` is not a number at column 3"),
            ("r*1e999", "`1e999` is not a number at column 3"),
            ("min(r)", "`,` expected, not `)` at column 6"),
            ("r²", "unknown name `r²` at column 1"),
            ("r % 2", "unexpected `%` at column 3"),
            ("sqrt r", "`(` expected, not `r` at column 6"),
        ] {
            let error = Expression::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{expected}; ")), "{error}");
        }
        assert!(Expression::parse(&"(".repeat(100_000)).is_err());
        assert!(Expression::parse(&"-".repeat(Expression::LONGEST)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[r0-9e.+*/^(), -]{0,40}|\\PC{0,40}") {
            if let Ok(expression) = Expression::parse(&text) {
                let _ = expression.at(0.5);
            }
        }
    }
}
