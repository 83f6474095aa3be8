package main

import "bytes"

// mostDigits of an exponent, and of a number without one, that is a double for sure.
const (
	mostExponentDigits = 2
	mostDigits         = 300
)

// isForDoor says whether JSON has something that protojson takes and the door's reader refuses:
// arrays in arrays without end, numbers that are no doubles, and names in the form that extensions
// have. All of that can stand in fields that nobody knows.
func isForDoor(text []byte) bool {
	depth := 0
	for at := 0; at < len(text); at++ {
		switch char := text[at]; {
		case char == '"':
			end := endOfString(text, at+1)
			if isExtension(text[at:end], text[end:]) {
				return true
			}
			at = end - 1
		case char == '[' || char == '{':
			if depth++; depth > maxDepth {
				return true
			}
		case char == ']' || char == '}':
			depth--
		case char == 'e' || char == 'E':
			if digits(text, at+1) > mostExponentDigits {
				return true
			}
		case isDigit(char):
			count := digits(text, at)
			if count > mostDigits {
				return true
			}
			at += count - 1
		}
	}
	return false
}

// endOfString returns where a JSON string ends that begins behind its opening quote.
func endOfString(text []byte, start int) int {
	for at := start; ; {
		next := bytes.IndexByte(text[at:], '"')
		if next < 0 {
			return len(text)
		}
		at += next + 1
		escapes := 0
		for at-2-escapes >= start && text[at-2-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return at
		}
	}
}

// isExtension says whether a JSON string is the name of a field, with brackets around it.
func isExtension(name, behind []byte) bool {
	if !bytes.HasPrefix(name, []byte(`"[`)) || !bytes.HasSuffix(name, []byte(`]"`)) {
		return false
	}
	return bytes.HasPrefix(bytes.TrimLeft(behind, " \t\r\n"), []byte{':'})
}

// digits counts those at a place, behind a plus sign: a negative exponent makes no number too large.
func digits(text []byte, at int) int {
	if at < len(text) && text[at] == '+' {
		at++
	}
	start := at
	for at < len(text) && isDigit(text[at]) {
		at++
	}
	return at - start
}

func isDigit(char byte) bool { return char >= '0' && char <= '9' }
