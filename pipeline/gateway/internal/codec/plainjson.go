package codec

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"
)

// plain is where in a JSON text it is read. Its methods accept JSON; they return false for text that is not
// JSON or not plain, and then it cannot be used further.
type plain struct {
	text []byte
	at   int
}

// object reads an object whose fields have numbers: none may be there twice.
func (p *plain) object(field func(name []byte) (number int, isRead bool)) bool {
	seen := 0
	if !p.take('{') {
		return false
	}
	for !p.take('}') {
		if seen != 0 && !p.take(',') {
			return false
		}
		name, isName := p.quoted()
		if !isName || !p.take(':') {
			return false
		}
		number, isRead := field(name)
		if !isRead || seen&(1<<number) != 0 {
			return false
		}
		seen |= 1 << number
	}
	return true
}

// set reads one value.
func set[T any](p *plain, place *T, read func(*plain) (T, bool)) (isRead bool) {
	p.peek()
	*place, isRead = read(p)
	return isRead
}

// appendAll reads an array.
func appendAll[T any](p *plain, list *[]T, read func(*plain) (T, bool)) bool {
	if !p.take('[') {
		return false
	}
	for isFirst := true; !p.take(']'); isFirst = false {
		if !isFirst && !p.take(',') {
			return false
		}
		p.peek()
		value, isRead := read(p)
		if !isRead {
			return false
		}
		*list = append(*list, value)
	}
	return true
}

// peek skips white space and returns what is next, 0 at the end.
func (p *plain) peek() byte {
	for ; p.at < len(p.text); p.at++ {
		switch char := p.text[p.at]; char {
		case ' ', '\t', '\n', '\r':
		default:
			return char
		}
	}
	return 0
}

// take passes what is next if that is the character.
func (p *plain) take(char byte) bool {
	if p.peek() != char {
		return false
	}
	p.at++
	return true
}

func (p *plain) quoted() ([]byte, bool) {
	if !p.take('"') {
		return nil, false
	}
	start := p.at
	for ; p.at < len(p.text); p.at++ {
		switch char := p.text[p.at]; {
		case char == '"':
			p.at++
			return p.text[start : p.at-1], true
		case char == '\\', char < ' ':
			return nil, false
		}
	}
	return nil, false
}

func (p *plain) string() (string, bool) {
	text, isString := p.quoted()
	return string(text), isString && utf8.Valid(text)
}

func (p *plain) bytes() ([]byte, bool) {
	text, isString := p.quoted()
	data, err := base64.StdEncoding.AppendDecode(make([]byte, 0, base64.StdEncoding.DecodedLen(len(text))), text)
	return data, isString && err == nil
}

func (p *plain) bool() (value, isBool bool) {
	for _, each := range [...]string{"false", "true"} {
		if end := p.at + len(each); end <= len(p.text) && string(p.text[p.at:end]) == each {
			p.at = end
			return each == "true", true
		}
	}
	return false, false
}

// number passes a JSON number and returns its text.
func (p *plain) number() (text []byte, isInteger bool) {
	start := p.at
	p.skip('-', '-')
	if !p.skip('0', '0') && p.digits() == 0 {
		return nil, false
	}
	isInteger = true
	if p.skip('.', '.') {
		isInteger = false
		if p.digits() == 0 {
			return nil, false
		}
	}
	if p.skip('e', 'E') {
		isInteger = false
		p.skip('+', '-')
		if p.digits() == 0 {
			return nil, false
		}
	}
	return p.text[start:p.at], isInteger
}

// skip passes one of two characters.
func (p *plain) skip(one, other byte) bool {
	if p.at == len(p.text) || (p.text[p.at] != one && p.text[p.at] != other) {
		return false
	}
	p.at++
	return true
}

// digits passes digits and returns how many.
func (p *plain) digits() int {
	start := p.at
	for p.at < len(p.text) && isDigit(p.text[p.at]) {
		p.at++
	}
	return p.at - start
}

func (p *plain) float(bits int) (float64, bool) {
	text, _ := p.number()
	value, err := strconv.ParseFloat(string(text), bits)
	return value, err == nil
}

func (p *plain) float64() (float64, bool) { return p.float(64) }

func (p *plain) float32() (float32, bool) {
	value, isFloat := p.float(32)
	return float32(value), isFloat
}

// integer reads one that T can hold.
func integer[T int32 | uint32 | int64](p *plain) (T, bool) {
	text, isInteger := p.number()
	value, err := strconv.ParseInt(string(text), 10, 64)
	return T(value), isInteger && err == nil && int64(T(value)) == value
}

// int64 reads a number, or one in a string.
func (p *plain) int64() (int64, bool) {
	isQuoted := p.skip('"', '"')
	value, isInteger := integer[int64](p)
	return value, isInteger && isQuoted == p.skip('"', '"')
}
