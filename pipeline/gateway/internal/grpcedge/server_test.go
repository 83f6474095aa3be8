package grpcedge

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"pipeline/gateway/internal/gatewaytest"
)

func (b *bench) health(t *testing.T, name string) (healthpb.HealthCheckResponse_ServingStatus, error) {
	t.Helper()
	answer, err := healthpb.NewHealthClient(b.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
	return answer.GetStatus(), err
}

func TestHealthIsWhatIsSaid(t *testing.T) {
	b := start(t, greeting(), nil)
	for _, isReady := range []bool{false, true, false} {
		b.edge.SetReady(isReady)
		wanted := healthpb.HealthCheckResponse_NOT_SERVING
		if isReady {
			wanted = healthpb.HealthCheckResponse_SERVING
		}
		for _, name := range []string{"", "test.Service"} {
			if found, err := b.health(t, name); found != wanted || err != nil {
				t.Errorf("%q: %v %v", name, found, err)
			}
		}
	}
	if _, err := b.health(t, "other"); status.Code(err) != codes.NotFound {
		t.Errorf("%v", err)
	}
	b.edge.Drain()
	b.edge.SetReady(true)
	if found, _ := b.health(t, ""); found != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("it drains, and says %v", found)
	}
}

func TestWatchersAreToldOfTheStopAndSentAway(t *testing.T) {
	b := start(t, greeting(), nil)
	b.edge.SetReady(true)
	watching, err := healthpb.NewHealthClient(b.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if told, err := watching.Recv(); err != nil || told.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("%v %v", told, err)
	}
	if !b.edge.Stop(context.Background()) {
		t.Error("something was broken off")
	}
	if told, err := watching.Recv(); err != nil || told.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v %v", told, err)
	}
	if _, err := watching.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
}

func TestReflectionDescribesTheMessagesAndEndsWithTheEdge(t *testing.T) {
	b := start(t, greeting(), nil)
	asking, err := reflectionpb.NewServerReflectionClient(b.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"baidu.paddle_serving.pipeline_serving.Request", "pipeline.inference_v2.ModelInferRequest", "inference.GRPCInferenceService.ModelInfer"} {
		question := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name}}
		if err := asking.Send(question); err != nil {
			t.Fatal(err)
		}
		if answer, err := asking.Recv(); err != nil || len(answer.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("%s: %v %v", name, answer, err)
		}
	}
	if !b.edge.Stop(context.Background()) {
		t.Error("something was broken off")
	}
	if _, err := asking.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
}

func TestAStopWaitsForCallsAndNotForEver(t *testing.T) {
	b := start(t, greeting(), nil)
	ended := b.call(t.Context(), ask, "x")
	inside := b.peer.AskedBytes()
	stopped := make(chan bool, 1)
	go func() { stopped <- b.edge.Stop(context.Background()) }()
	gatewaytest.WaitUntil(t, "it is not ready", func() bool {
		found, err := b.health(t, "")
		return err != nil || found != healthpb.HealthCheckResponse_SERVING
	})
	b.peer.AnswerBytes(inside.ID, []byte("y"))
	if found := gatewaytest.Soon(t, "an answer", ended); found.answer != "y" {
		t.Errorf("%v %q", found.code, found.text)
	}
	if !gatewaytest.Soon(t, "the end", stopped) {
		t.Error("something was broken off")
	}

	b = start(t, greeting(), nil)
	ended = b.call(t.Context(), ask, "x")
	b.peer.AskedBytes()
	soon, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if b.edge.Stop(soon) {
		t.Error("nothing was broken off")
	}
	if found := gatewaytest.Soon(t, "an answer", ended); found.code != codes.Unavailable {
		t.Errorf("%v %q", found.code, found.text)
	}
}
