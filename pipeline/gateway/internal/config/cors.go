package config

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// CORS says which web pages of other origins may read answers.
type CORS struct {
	origins     originList
	headers     nameList
	Credentials bool
	MaxAge      time.Duration
}

const (
	anyOrigin       = "*"
	defaultCORSTime = 10 * time.Minute
)

// originList is the flag --cors-origin, which may be given several times.
type originList []string

func (l *originList) String() string { return "" }

func (l *originList) Set(text string) error {
	said, err := url.Parse(text)
	isOrigin := err == nil && (said.Scheme == "http" || said.Scheme == "https") && said.Host != "" && said.Scheme+"://"+said.Host == text
	if text != anyOrigin && !isOrigin {
		return fmt.Errorf("%q is not an origin, such as https://app.example.com, and not *", text)
	}
	*l = append(*l, strings.ToLower(text))
	return nil
}

// ofPages are headers that pages may always send, if their origin is allowed.
var ofPages = nameList{
	"accept": true, "authorization": true, "content-type": true, "grpc-timeout": true, "inference-header-content-length": true,
	"traceparent": true, "tracestate": true, "x-api-key": true, "x-request-id": true,
}

// addCORS adds the options of CORS.
func addCORS(flags *flag.FlagSet, cfg *Config) {
	flags.Var(&cfg.CORS.origins, "cors-origin", "`origin` of web pages that may ask and read answers, such as https://app.example.com, or *; repeatable")
	flags.Var(&cfg.CORS.headers, "cors-header", "`name` of a header that such pages may send besides the usual ones; repeatable")
	flags.BoolVar(&cfg.CORS.Credentials, "cors-credentials", false, "allow such pages to send cookies and certificates; not with *")
	flags.DurationVar(&cfg.CORS.MaxAge, "cors-max-age", defaultCORSTime, "time for which browsers remember the permission")
}

func (c *CORS) check() error {
	switch {
	case c.Credentials && slices.Contains(c.origins, anyOrigin):
		return errors.New("--cors-credentials: any page could ask in the name of who looks at it: name origins, not *")
	case c.MaxAge < 0:
		return errors.New("--cors-max-age must not be negative")
	}
	return nil
}

// IsOn says whether any page may ask.
func (c *CORS) IsOn() bool { return len(c.origins) > 0 }

// Varies says whether answers depend on who asks.
func (c *CORS) Varies() bool { return c.IsOn() && !slices.Contains(c.origins, anyOrigin) }

// Allows says whether a page may ask.
func (c *CORS) Allows(origin string) bool {
	return c.IsOn() && origin != "" && (!c.Varies() || slices.Contains(c.origins, strings.ToLower(origin)))
}

// AllowsHeader says whether a page may send a header, by its name in lower case.
func (c *CORS) AllowsHeader(name string) bool { return ofPages[name] || c.headers[name] }
