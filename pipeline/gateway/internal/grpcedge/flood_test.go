package grpcedge

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"pipeline/gateway/internal/gatewaytest"
)

// raw is a caller that sends frames of its own.
func (b *bench) raw(t *testing.T) (net.Conn, *http2.Framer) {
	t.Helper()
	conn, err := net.Dial("tcp", b.conn.Target())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(gatewaytest.Patience))
	framer := http2.NewFramer(conn, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return conn, framer
}

// writeHead encodes the head of a call.
func writeHead(encoder *hpack.Encoder) {
	for _, each := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", ask}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: each[0], Value: each[1]})
	}
}

func TestWhoFloodsIsSentAway(t *testing.T) {
	told := make(chan string, 1)
	b := start(t, greeting(), func(config *Config, _ *fixed) { config.HungUp = func(reason string) { told <- reason } })
	_, framer := b.raw(t)
	go func() {
		for range 1500 {
			if framer.WriteRawFrame(http2.FrameType(0xee), 0, 0, nil) != nil {
				return
			}
		}
	}()
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if goodbye, isGoodbye := frame.(*http2.GoAwayFrame); isGoodbye {
			if goodbye.ErrCode != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("%v", goodbye)
			}
			break
		}
	}
	if reason := gatewaytest.Soon(t, "a reason", told); reason != "control_frames" {
		t.Error(reason)
	}
	if _, err := b.health(t, ""); err != nil {
		t.Errorf("another caller: %v", err)
	}
}

func TestAConnectionHasSoManyCallsAndSaysSo(t *testing.T) {
	b := start(t, greeting(), nil)
	_, framer := b.raw(t)
	frame, err := framer.ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	said, isSettings := frame.(*http2.SettingsFrame)
	if !isSettings {
		t.Fatalf("%v", frame)
	}
	if most, isSaid := said.Value(http2.SettingMaxConcurrentStreams); most != streamsAtOnce || !isSaid {
		t.Errorf("%d calls", most)
	}
	if most, isSaid := said.Value(http2.SettingMaxHeaderListSize); most != mostHeaders || !isSaid {
		t.Errorf("%d bytes", most)
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	writeHead(encoder)
	for number := range streamsAtOnce + 1 {
		head := http2.HeadersFrameParam{StreamID: uint32(2*number + 1), BlockFragment: block.Bytes(), EndHeaders: true}
		if err := framer.WriteHeaders(head); err != nil {
			t.Fatal(err)
		}
		block.Reset() // all are in the table of the first
		writeHead(encoder)
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if refused, isReset := frame.(*http2.RSTStreamFrame); isReset {
			if refused.ErrCode != http2.ErrCodeRefusedStream || refused.StreamID != 2*streamsAtOnce+1 {
				t.Errorf("%v", refused)
			}
			return
		}
	}
}

func TestHeadersOfManyFieldsAreNotRead(t *testing.T) {
	b := start(t, greeting(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), gatewaytest.Patience)
	defer cancel()
	many := metadata.MD{}
	for range 5000 { // 32 bytes each count beside what they are
		many.Append("a", "")
	}
	found := <-b.call(metadata.NewOutgoingContext(ctx, many), ask, "x")
	if found.code != codes.Internal && found.code != codes.ResourceExhausted {
		t.Errorf("%v %q", found.code, found.text)
	}
}
