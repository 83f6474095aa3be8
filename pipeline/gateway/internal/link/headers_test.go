package link

import (
	"testing"

	"pipeline/gateway/internal/gatewaytest"
	"pipeline/gateway/internal/upstream"
)

func TestARequestThatNobodySentHasNoHeadersOnALink(t *testing.T) {
	server := gatewaytest.StartLinkServer(t, "")
	client := startLink(t, server.Path)
	peer := gatewaytest.HeadedPeer(t, server)
	client.reporting(t, upstream.StateServing)
	done := client.asking(t.Context(), "hello")
	asked := peer.Asked()
	if len(asked.Headers) != 1 || asked.Headers[0] != "" || asked.Request.Value[0] != "hello" {
		t.Errorf("asked %+v", asked)
	}
	peer.Answer(asked.ID, gatewaytest.ResponseOf("there"))
	if got := gatewaytest.Soon(t, "an answer", done); got.err != nil {
		t.Error(got.err)
	}
}
